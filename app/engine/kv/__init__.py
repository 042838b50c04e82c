"""Manage KV pages."""
