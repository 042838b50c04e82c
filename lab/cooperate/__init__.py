"""Compare the ways of drafting."""
