"""Measure step costs on this machine."""
