"""Run the target's forward on CPUs:

numba functions over sixteen-lane vectors, on a team of threads (docs/decisions/0005).
"""
