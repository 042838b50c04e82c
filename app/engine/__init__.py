"""Run models: tokenizers, the paged KV cache, forwards, drafter models and their measurement."""
