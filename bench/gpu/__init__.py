"""Measure the GPU's kernels and engine in one call."""
