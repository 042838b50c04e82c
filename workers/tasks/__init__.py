"""Register Celery tasks (`generate`, `steer`, `doorbell`), and do their work (the other modules)."""
