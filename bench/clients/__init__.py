"""Measure under many clients."""
