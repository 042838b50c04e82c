"""Run a fuser: rounds that wait for drafts, and the trees made of them."""
