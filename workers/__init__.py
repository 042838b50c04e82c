"""Run the pipeline's segments in worker processes: Celery tasks, mailboxes, heartbeats."""
