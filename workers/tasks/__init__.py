"""Register Celery tasks, and do their work."""
