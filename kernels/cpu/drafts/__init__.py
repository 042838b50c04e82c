"""Learn from drafts, and fuse them: what a fuser computes for a whole batch."""
