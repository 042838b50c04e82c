"""Redis: keys, scripts and what they promise."""
