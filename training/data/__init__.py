"""Make training data from the target's answers and from text that it reads."""
