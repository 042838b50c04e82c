"""A pass on a CPU."""
