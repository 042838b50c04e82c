"""Find, fetch, convert and read a model's files."""
