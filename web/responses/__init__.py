"""Serve OpenAI's Responses API: an answer as items, none of them kept."""
