"""Construct the objects and strategies that the settings select; nothing is constructed elsewhere."""
