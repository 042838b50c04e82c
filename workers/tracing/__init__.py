"""Record the workers' spans of work."""
