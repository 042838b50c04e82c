"""Run models."""
