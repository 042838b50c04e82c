"""Run all of the GPU's path in one call."""
