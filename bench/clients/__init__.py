"""Measure a deployment under many clients."""
