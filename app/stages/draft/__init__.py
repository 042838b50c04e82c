"""Drafters: everything that guesses the next tokens of a sequence."""
