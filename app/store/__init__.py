"""Keep requests, mail, leases and statistics in Redis, or requests in memory."""
