"""The calls of OpenAI's API that make sense here, in its shapes: models, completions, chat completions."""
