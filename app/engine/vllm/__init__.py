"""Run the target inside vLLM: its weights, cache and forward. Scheduling, drafts and tokens are Paceline's.

`contract` says what of vLLM this stands on; only `load` and `choosing` can be imported without vLLM.
"""
