"""Run the target on a GPU."""
