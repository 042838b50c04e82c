"""Layers of a decoder."""
