"""Which rows leave a pass early, and when that pays."""
