"""The Celery app, and beat as a thread of the embedded worker."""

from __future__ import annotations

import os
import threading
import time
import warnings
from typing import Any

import structlog
from celery import Celery, signals
from celery.beat import Service

from relayproject import env

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "relayproject.settings")

# Whether the worker of this process also runs beat. Set by `serve` for its one worker child: as
# a thread, beat cannot outlive a killed worker the way its own process would.
BEAT_VARIABLE = "RELAY_WORKER_BEAT"

# Celery's own advice for root in a worker that unpickles; ours accepts JSON only, and the demo and
# containers do run as root.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

BEAT_RESTART_S = 5.0  # a locked database passes; faster would only fill the log

app = Celery("relayproject")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

log = structlog.get_logger(__name__)


def use_broker(url: str) -> None:
    """Send this process's tasks to `url`, known only after the embedded Valkey started."""
    app.conf.update(broker_url=url)


@signals.setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Being connected is what counts: Celery then leaves logging to `logs.py`."""


@signals.worker_ready.connect
def _start_beat(**_: Any) -> None:
    if env.boolean(BEAT_VARIABLE, False):
        threading.Thread(target=_run_beat, name="beat", daemon=True).start()


def _run_beat() -> None:
    """Run beat for as long as the process lives, starting it again after an error."""
    app.set_current()
    while True:
        try:
            # Unlike the command, the service does not look up the scheduler's setting.
            Service(app, scheduler_cls=app.conf.beat_scheduler).start()
        except Exception:  # the outermost edge of the thread
            log.exception("beat_failed", restart_s=BEAT_RESTART_S)
        time.sleep(BEAT_RESTART_S)
