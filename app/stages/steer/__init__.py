"""Decide the policy from the load."""
