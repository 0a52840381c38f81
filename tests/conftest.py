"""Fixtures: a live relay on a real socket, a fake upstream, and rows to route by.

One relay and one upstream serve the whole session. `world` gives a test a group, a user
with a token and a maker of channels, and makes what it saved count at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.relay import Client, LiveRelay
from tests.support.upstream import Action, Upstream

# A loaded machine is slow now and then; that says nothing about the code under test.
settings.register_profile(
    "relay", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("relay")

WIRE_DIR = Path(os.environ.get("RELAY_WIRE_DIR", Path(__file__).parents[2] / "shared/wire"))


@pytest.fixture(scope="session")
def wire_dir() -> Path:
    """The recorded provider traffic; tests that need it skip where it is absent."""
    if not WIRE_DIR.is_dir():
        pytest.skip(f"recorded traffic is not here: set RELAY_WIRE_DIR ({WIRE_DIR})")
    return WIRE_DIR


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None,
    django_db_modify_db_settings: None,
    django_db_blocker: Any,
) -> Iterator[None]:
    """Make the test database for every run: pytest-django looks at marks to see whether one is
    needed, and tests of the live relay carry none."""
    from django.test.utils import setup_databases, teardown_databases

    with django_db_blocker.unblock():
        made = setup_databases(verbosity=0, interactive=False, aliases={"default"})
    yield
    with django_db_blocker.unblock():
        teardown_databases(made, verbosity=0)


@pytest.fixture(scope="session")
def upstream_server() -> Iterator[Upstream]:
    upstream = Upstream()
    upstream.start()
    yield upstream
    upstream.stop()


@pytest.fixture
def upstream(upstream_server: Upstream) -> Iterator[Upstream]:
    upstream_server.reset()
    yield upstream_server
    upstream_server.reset()


@pytest.fixture(scope="session")
def relay(django_db_setup: None, django_db_blocker: Any) -> Iterator[LiveRelay]:
    with django_db_blocker.unblock():
        relay = LiveRelay()
        relay.start()
        yield relay
        relay.stop()


@pytest.fixture(scope="session")
def state_store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a state store: `REDIS_URL`, or a Valkey of the session's own."""
    from relayproject import valkey
    from relayproject.children import Supervisor

    if os.environ.get("REDIS_URL"):
        yield os.environ["REDIS_URL"]
        return
    supervisor = Supervisor()
    yield valkey.start(supervisor, data_dir=tmp_path_factory.mktemp("state-store")).url
    supervisor.stop_all()


@pytest.fixture
def state_store(state_store_url: str) -> Iterator[str]:
    """The address of a state store without keys of the relay."""
    delete_state(state_store_url)
    yield state_store_url
    delete_state(state_store_url)


class World:
    """Rows of one test and the client that uses them."""

    def __init__(self, relay: LiveRelay, upstream: Upstream) -> None:
        from billing_app.models import User
        from billing_app.services import token_create
        from channels_app.models import Group

        relay.rebuild()
        self.relay = relay
        self.upstream = upstream
        self.group = Group.objects.create(name="default")
        self.user = User.objects.create_user("alice")
        self.token, self.key = token_create(user=self.user, name="t")
        self.client = Client(relay.url, self.key)
        self.options(AllowUnpricedModels=True)  # tests that are not about money name no prices

    def channel(self, name: str, *actions: Action, **fields: Any) -> Any:
        """Make a channel of the fake upstream; `actions` are its script."""
        from channels_app.models import Channel
        from channels_app.services import channel_key_add

        values = {
            "provider": "openai",
            "base_url": self.upstream.url(name),
            "model_names": ["m"],
            **fields,
        }
        channel = Channel.objects.create(name=name, **values)
        channel.groups.add(self.group)
        channel_key_add(channel=channel, value=f"sk-upstream-{name}-0123456789")
        if actions:
            self.upstream.script(name, *actions)
        return channel

    def options(self, **values: Any) -> None:
        from channels_app.services import options_set

        options_set(values=values)

    def ready(self) -> Client:
        """Make all that was saved count and return the client."""
        self.relay.refresh()
        return self.client

    def log(self, request_id: str) -> Any:
        """Return the request's row."""
        from relay_app.models import RequestLog

        self.relay.flush()
        return RequestLog.objects.get(request_id=request_id)


@pytest.fixture
def world(relay: LiveRelay, upstream: Upstream) -> Iterator[World]:
    """Rows that are really committed: the relay reads them on connections of its own."""
    empty_tables()
    world = World(relay, upstream)
    yield world
    world.client.http.close()
    relay.flush()
    empty_tables()


def delete_state(url: str) -> None:
    """Delete all keys of the relay from a state store."""
    import redis

    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter("relay:*"):
            client.delete(key)


def empty_tables() -> None:
    """Delete all rows of ours: much quicker than Django's flush of every table."""
    from django.apps import apps
    from django.db import transaction
    from django.db.models import QuerySet

    ours = {"channels_app", "billing_app", "relay_app", "admin", "sessions"}
    with transaction.atomic():  # foreign keys are checked at its end
        for model in apps.get_models(include_auto_created=True):
            if model._meta.app_label in ours and model._meta.managed:
                QuerySet(model)._raw_delete("default")  # past managers that refuse
