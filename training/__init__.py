"""Make drafters: distil a target into a small causal LM, fit predictors, collect phrases."""
