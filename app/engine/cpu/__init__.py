"""Run models on a CPU."""
