"""Where KV pages are."""
