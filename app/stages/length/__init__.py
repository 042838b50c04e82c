"""Decide how many tokens are drafted."""
