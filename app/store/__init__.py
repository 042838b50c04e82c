"""Store requests, mail, leases and shared statistics in Redis, by keys and Lua scripts."""
