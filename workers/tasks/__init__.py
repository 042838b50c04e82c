"""Celery tasks: `generate`, `steer` and `doorbell` each register one; the other modules do its work."""
