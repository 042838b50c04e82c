"""Find, fetch and read a model's files."""
