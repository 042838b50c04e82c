"""Count a process's events for metrics."""
