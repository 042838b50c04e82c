"""Celery: thin tasks around the pipeline's segments."""
