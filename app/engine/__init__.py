"""Models, tokenizers, the paged KV cache and the model runner."""
