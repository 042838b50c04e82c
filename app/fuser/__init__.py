"""What a fuser runs, and which rounds wait for drafts."""
