"""Run a deployment whose drafters are on hosts of their own, and hold the simulation against it."""
