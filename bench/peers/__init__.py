"""Paceline beside the engines people would take instead, each in a process and an environment of its own."""
