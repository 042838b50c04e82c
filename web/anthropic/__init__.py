"""Serve Anthropic's Messages API, for the agents that speak it."""
