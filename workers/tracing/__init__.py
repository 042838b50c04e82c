"""Record which worker worked on which requests, and when: for timelines in Redis, and for OpenTelemetry."""
