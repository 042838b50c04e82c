"""Keep a deployment's state in Redis, or requests in memory."""
