"""Who drafts, how many tokens, and how long the verifier waits for them."""
