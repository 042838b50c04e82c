"""Serve a kind of worker process: one module a role, each with `serve`."""
