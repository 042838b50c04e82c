"""Define the one error that this package raises on purpose."""


class Error(Exception):
    """What went wrong, in words fit for a user."""
