"""Serve HTTP with Flask."""
