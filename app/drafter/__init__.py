"""Run a drafter node: replicas of sequences, model drafters, running ahead."""
