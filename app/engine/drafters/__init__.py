"""How a drafter's model is run."""
