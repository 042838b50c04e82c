"""Run the target's forward on CPUs: numba functions over sixteen-lane vectors, called by a team of
threads once a step.

Every output element is computed by one thread in one fixed order of additions, whatever rows, tiles
or threads stand beside it: a row's bits cannot depend on the batch. docs/decisions/0005 says why
and what it gains.
"""
