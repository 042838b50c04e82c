"""Serve worker processes, one role a module."""
