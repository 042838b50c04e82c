"""Simulate the testbeds of the papers: worlds as JSON, costs by a roofline, drafts from a generator or recordings."""
