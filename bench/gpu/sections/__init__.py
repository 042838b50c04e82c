"""Measure one part of the GPU's path each."""
