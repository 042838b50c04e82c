"""A drafter's model: how it is made, trained, checked, kept."""
