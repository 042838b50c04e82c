"""Send malformed input to every door of a deployment."""
