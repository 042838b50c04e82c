"""Serve HTTP with Flask: the page, both APIs, the event streams, metrics and the dashboard."""
