"""Hold many event streams open on one web process, and measure what they cost."""
