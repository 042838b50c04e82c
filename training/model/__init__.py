"""Make, train, evaluate and store a drafter's model."""
