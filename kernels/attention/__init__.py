"""Attend to paged keys and values."""
