"""Measure the cost of a step on this machine, and keep it."""
