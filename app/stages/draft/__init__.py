"""Model-free drafters, and the protocol that all drafters follow."""
