"""Multiply rows by a packed weight on a CPU: from float32, from what a file stores, or in integers."""
