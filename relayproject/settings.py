"""Every setting of the process: its meaning, unit, default and the reason.

Values come from the environment through `env.py`, which stops the start on a wrong one. What an
operator changes while the relay runs is not here but in the options table (`channels_app`).
"""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import django_stubs_ext
from cryptography.fernet import Fernet
from django.core.management.utils import get_random_secret_key
from django.templatetags.static import static

from relayproject import env, secret_store

# Typed code says ModelAdmin[User]; Django's own classes learn to take the brackets here.
django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent

env.load_file(BASE_DIR / ".env")

# The version that /readyz, logs and `serve` show; one source, so that they never disagree.
VERSION: str = tomllib.loads((BASE_DIR / "pyproject.toml").read_text())["project"]["version"]

# -- State ---------------------------------------------------------------------------

# Folder of all generated state: SQLite file, generated secrets, Valkey files, the lock of
# `serve`. Relative paths count from the project, so that cron and shell mean the same folder.
DATA_DIR = env.folder("DATA_DIR", BASE_DIR / "data", base=BASE_DIR)

# Whether this installation brings its own Valkey. True while REDIS_URL is unset: one command on
# a fresh machine must work. A set REDIS_URL means production, and nothing is made up silently.
EMBEDDED = not env.is_set("REDIS_URL")

# Where a running `serve` leaves the address of its Valkey (0600: it holds the password).
REDIS_URL_FILE = DATA_DIR / "redis.url"

# State store: circuits, affinity, rate counters. Blank when none is known, so that `check` and
# `migrate` work before the first `serve`; commands beside a running one find its Valkey.
REDIS_URL = env.redis_url("REDIS_URL")
if EMBEDDED and REDIS_URL_FILE.is_file():
    REDIS_URL = REDIS_URL_FILE.read_text().strip()

# -- Secrets -------------------------------------------------------------------------

_WHY_REQUIRED = "with REDIS_URL set (production) it is not generated; every process needs the same"

# Signs sessions and the admin's tokens. Changing it logs everybody out, nothing more.
SECRET_KEY = env.text("SECRET_KEY")
if not SECRET_KEY:
    if not EMBEDDED:
        raise env.required("SECRET_KEY", why=_WHY_REQUIRED)
    SECRET_KEY = secret_store.read_or_create(DATA_DIR / "secret_key", get_random_secret_key)

# Fernet keys that encrypt channel keys at rest: the first encrypts, all decrypt. To rotate, put
# a new one in front. Losing them loses the stored channel keys.
RELAY_ENCRYPTION_KEYS = env.fernet_keys("RELAY_ENCRYPTION_KEYS")
if not RELAY_ENCRYPTION_KEYS:
    if not EMBEDDED:
        raise env.required("RELAY_ENCRYPTION_KEYS", why=_WHY_REQUIRED)
    RELAY_ENCRYPTION_KEYS = env.parse_fernet_keys(
        secret_store.read_or_create(
            DATA_DIR / "encryption_keys", lambda: Fernet.generate_key().decode()
        )
    )

# -- HTTP ----------------------------------------------------------------------------

# Never on by itself: tracebacks in answers show secrets.
DEBUG = env.boolean("DEBUG", False)

# Names by which browsers may reach the admin; guards against forged Host headers.
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])

# Origins that may post admin forms, besides the host itself; needed behind a proxy that ends TLS
# and does not say so in X-Forwarded-Proto, or changes the Host.
CSRF_TRUSTED_ORIGINS = env.origins("CSRF_TRUSTED_ORIGINS")

# The page of a form that came from elsewhere, in the admin's style.
CSRF_FAILURE_VIEW = "relay_app.admin.refusals.not_from_here"

# Networks whose X-Forwarded-For and -Proto are believed. Default none: anybody can send them.
TRUSTED_PROXIES = env.networks("TRUSTED_PROXIES")

# What says that a request came by https. ProxyMiddleware drops it where no trusted proxy sent it,
# and marks cookies as Secure where it counts.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# Largest request body in bytes (set in MiB). 64 MiB holds a dozen images in base64; each
# request in flight may hold this much memory.
MAX_REQUEST_BODY_BYTES = env.integer("MAX_REQUEST_BODY_MB", 64, low=1, high=1024) * 1024 * 1024

# Django's own limit for bodies that it reads; the same, so that there is one answer.
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_REQUEST_BODY_BYTES

# Bearer token that may read /metrics and the detail of /readyz from elsewhere than this
# machine. Blank: only this machine may.
METRICS_TOKEN = env.text("METRICS_TOKEN")

# Seconds that requests in flight may take to finish after SIGTERM. 30 is what orchestrators
# wait before they kill.
DRAIN_S = env.integer("RELAY_DRAIN_S", 30, low=0, high=3600)

# Where a login without a page to go back to leads.
LOGIN_REDIRECT_URL = "/admin/"

ROOT_URLCONF = "relayproject.urls"

# -- Relay ---------------------------------------------------------------------------

# Seconds between looks at the version stamps in the database. A change must be in use within
# 2 s on every process; half a second leaves room for the rebuild and costs one small query.
SNAPSHOT_POLL_S = env.number("RELAY_SNAPSHOT_POLL_S", 0.5, low=0.02, high=2.0)

# -- Applications --------------------------------------------------------------------

INSTALLED_APPS = [
    # Unfold replaces templates of django.contrib.admin and so comes before it.
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "unfold.contrib.simple_history",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "simple_history",
    "django_celery_beat",
    "rest_framework",
    "channels_app",
    "billing_app",
    "relay_app",
    "relayproject",
]

# Only the admin and the management API go through these; relay paths have the lean handler.
MIDDLEWARE = [
    "relayproject.middleware.ProxyMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "simple_history.middleware.HistoryRequestMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

AUTH_USER_MODEL = "billing_app.User"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]

UNFOLD = {
    "SITE_TITLE": "Relay",
    "SITE_HEADER": "Relay",
    "SITE_SYMBOL": "alt_route",
    "SITE_URL": None,  # the relay's own root answers clients, not browsers
    "SHOW_VIEW_ON_SITE": False,
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda _request: static("relay_app/favicon.svg"),
        }
    ],
    "STYLES": [lambda _request: static("relay_app/admin.css")],
    "DASHBOARD_CALLBACK": "relay_app.admin.home.home",
    "COMMAND": {"search_callback": "relay_app.admin.navigation.search"},
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "navigation": "relay_app.admin.navigation.sidebar",
    },
}

# -- Language and time ---------------------------------------------------------------

USE_TZ = True

# Time zone of the admin's pages; days of limits and the database are always UTC.
TIME_ZONE = env.time_zone("TIME_ZONE", "UTC")

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]

# -- Static files of the admin -------------------------------------------------------

STATIC_URL = "static/"

# Served straight from the installed packages: no collect step that a start could miss.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

# WhiteNoise hands Django's ASGI handler a synchronous iterator. The files are small and local;
# the warning would stand in the log once per start and says nothing an operator can change.
warnings.filterwarnings(
    "ignore", message="StreamingHttpResponse must consume synchronous iterators"
)

# -- Database ------------------------------------------------------------------------


def _database() -> dict[str, Any]:
    """Return the default database with the options its engine needs."""
    found = env.database("DATABASE_URL", DATA_DIR / "relay.sqlite3")
    # Connections go back at once: threads of an ASGI process come and go, and a kept
    # connection per thread runs a PostgreSQL server out of them.
    found["CONN_MAX_AGE"] = 0
    if found["ENGINE"] != "django.db.backends.sqlite3":
        # Seconds until an unreachable server is an error instead of a hang.
        found["OPTIONS"] = {"connect_timeout": 5, **found.get("OPTIONS", {})}
        return found
    if not env.is_set("DATABASE_URL"):
        secret_store.make_folder(DATA_DIR)
    found["OPTIONS"] = {
        # Take the write lock when a transaction begins: upgrading a read lock later fails at
        # once, whatever the timeout.
        "transaction_mode": "IMMEDIATE",
        # Seconds a writer waits for another one; bulk edits in the admin take a few.
        "timeout": 20,
        # Readers beside one writer; NORMAL loses nothing on a crash of the process, at most
        # the last transactions on a power cut.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # A file, so that the threads of a test server share it.
    found["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}
    return found


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# -- Background tasks ----------------------------------------------------------------

# Port 0 refuses at once: with no broker known a task fails with a clear error, where a blank
# URL would make Celery look for RabbitMQ.
NO_BROKER_URL = "redis://127.0.0.1:0/0"

CELERY_BROKER_URL = env.redis_url("CELERY_BROKER_URL", REDIS_URL or NO_BROKER_URL)

# Seconds and tries that bound what a web request waits for an absent broker: about 2 s.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 1.0,
    "socket_timeout": 5.0,
    "max_retries": 1,
    "interval_start": 0.0,
    "interval_step": 0.2,
    "interval_max": 0.2,
}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.0}
# A worker, unlike a web request, waits for its broker as long as it takes.
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Tasks claim their work in the database, so one that runs on while the broker is away is safe.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False

# Results are rows of our own tables; JSON only, since a pickle runs code.
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None  # nothing to clean up, so no task of Celery's own for it
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = TIME_ZONE
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


def _every(period_s: int, task: str) -> dict[str, Any]:
    """Return a beat entry that expires before the next one is due, so none pile up."""
    return {
        "task": task,
        "schedule": float(period_s),
        # The scheduler's own word; it drops Celery's `expires` in silence.
        "options": {"expire_seconds": period_s - max(1, period_s // 60)},
    }


CELERY_BEAT_SCHEDULE = {
    "reap sessions": _every(30, "billing_app.tasks.reap_sessions"),
    "prune snapshot changes": _every(_HOUR_S, "relay_app.tasks.prune_snapshot_changes"),
    "prune request logs": _every(_DAY_S, "relay_app.tasks.prune_request_logs"),
}

# -- Logs ----------------------------------------------------------------------------

LOG_LEVEL = env.choice("LOG_LEVEL", "INFO", options=("DEBUG", "INFO", "WARNING", "ERROR"))

# `console` for people, `json` (one object per line) for collectors. Both on stderr.
LOG_FORMAT = env.choice("LOG_FORMAT", "console", options=("console", "json"))

LOGGING_CONFIG = "relayproject.logs.configure"
LOGGING = {"level": LOG_LEVEL, "format": LOG_FORMAT}
