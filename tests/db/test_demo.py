"""Demo data: made once, and what the operator deleted stays away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db.models import QuerySet

from billing_app.models import LedgerEntry, Token, User
from channels_app.models import Channel, Option
from channels_app.presets import PRESETS
from channels_app.services import options_set
from relayproject import demo

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, settings: Any) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def set_up() -> tuple[str, list[str]]:
    """Set it up; return what it tells, and what it said on the way."""
    said: list[str] = []
    return str(demo.set_up(address="http://h", say=said.append)), said


def test_a_first_start_makes_everything() -> None:
    told, said = set_up()

    assert len(said) == 1
    assert said[0].startswith("  user admin, password ")
    password = said[0].split("password ")[1].split()[0]
    assert User.objects.get(username="admin").check_password(password)
    assert "demo data made" in told
    assert "curl -i http://h/v1/chat/completions" in told
    assert password not in told
    assert dict(Option.objects.values_list("name", "value")) == PRESETS["resilient"]


def test_a_second_start_makes_nothing_and_helps_with_a_lost_password() -> None:
    set_up()
    User.objects.filter(username="admin").update(username="root-user")

    told, said = set_up()

    assert said == []
    assert "demo data found" in told
    assert "manage.py changepassword root-user" in told
    assert "curl -i" in told


def test_a_second_start_leaves_options_as_they_are() -> None:
    set_up()
    options_set(values={"RetryTimes": 1})

    set_up()

    assert Option.objects.get(name="RetryTimes").value == 1


@pytest.mark.parametrize(
    "gone",
    [
        lambda: Channel.objects.filter(name="demo-primary").delete(),
        lambda: Channel.objects.all().delete(),
        lambda: (Channel.objects.all().delete(), Token.objects.all().delete()),
    ],
)
def test_what_was_deleted_stays_away(gone: Any) -> None:
    set_up()
    gone()
    before = (Channel.objects.count(), Token.objects.count(), User.objects.count())

    told, _ = set_up()

    assert (Channel.objects.count(), Token.objects.count(), User.objects.count()) == before
    assert "curl" not in told
    assert "was deleted" in told


def test_a_new_database_gets_it_again() -> None:
    set_up()
    Channel.objects.all().delete()
    QuerySet(LedgerEntry)._raw_delete("default")  # past its manager, which refuses
    User.objects.all().delete()

    told, said = set_up()

    assert len(said) == 1
    assert "demo data made" in told
    assert Channel.objects.count() == 2


def test_an_installation_from_before_the_file_is_known(data_dir: Path) -> None:
    set_up()
    (data_dir / demo.MADE_FILE).unlink()
    Channel.objects.all().delete()

    set_up()

    assert not Channel.objects.exists()
