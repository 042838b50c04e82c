"""Measure Paceline against itself and against its peers."""
