"""Serve the part of OpenAI's API that applies here: models, completions, chat completions."""
