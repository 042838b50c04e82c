"""Make training data of the target's own answers."""
