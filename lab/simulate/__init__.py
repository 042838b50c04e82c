"""Replay recorded drafts on simulated machines."""
