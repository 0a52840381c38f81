"""Puts the three apps together: settings, processes, URLs.

The Celery app is imported here, so that `.delay()` anywhere uses it and not Celery's default,
which would look for RabbitMQ.
"""

from relayproject.celery import app as celery_app

__all__ = ["celery_app"]
