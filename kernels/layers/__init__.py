"""Compute a decoder's layers, but for attention."""
