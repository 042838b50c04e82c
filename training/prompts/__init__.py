"""Draw prompts."""
