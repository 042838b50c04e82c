"""Run the target inside vLLM: its weights, cache and forward. Scheduling, drafts and tokens are Paceline's."""
