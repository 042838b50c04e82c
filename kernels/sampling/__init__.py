"""How a token is chosen."""
