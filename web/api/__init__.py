"""Serve the native JSON API."""
