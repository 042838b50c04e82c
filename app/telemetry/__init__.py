"""Count what the processes do."""
