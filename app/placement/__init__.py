"""Divide a machine between verifying and drafting."""
