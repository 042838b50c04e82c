"""Turn text into tokens and back: tokenizer, chat template, stop strings, grammars."""
