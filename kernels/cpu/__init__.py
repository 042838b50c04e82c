"""Run a model's forward on CPUs: numba functions over sixteen-lane vectors (docs/decisions/0005)."""
