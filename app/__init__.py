"""The domain: no Flask, no Celery; Redis only in app/store."""
