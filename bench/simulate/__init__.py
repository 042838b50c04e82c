"""Replay recorded drafts on machines you do not have."""
