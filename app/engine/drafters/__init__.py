"""Run a drafter's model."""
