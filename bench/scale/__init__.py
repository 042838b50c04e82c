"""Measure what a round costs the host, around a target that only takes time."""
