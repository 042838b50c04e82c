"""Learn which draft tokens a target will reject."""
