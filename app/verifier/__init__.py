"""Run the target over sequences: schedule, verify, commit, ask for drafts."""
