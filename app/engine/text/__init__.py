"""How text and tokens meet."""
