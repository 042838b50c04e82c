"""Decide each stage of a request's life, one verb a file; stages do not import each other."""
