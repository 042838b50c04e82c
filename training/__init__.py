"""Making drafters: distilling a target into a small causal LM."""
