"""Compose the next batch and cut each tree."""
