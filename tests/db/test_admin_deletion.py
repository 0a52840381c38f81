"""Deleting in the admin: what is named stays, and the page says in plain words who loses what."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group as Role
from django.test import Client

from billing_app.models import User
from billing_app.services import token_create
from channels_app.models import Channel, Group, Option
from channels_app.services import channels_set_enabled
from tests.support.admin_rows import channel, operator, signed_in

pytestmark = pytest.mark.django_db

GROUPS = "/admin/channels_app/group/"
CHANNELS = "/admin/channels_app/channel/"
CONFIRMED = {"post": "yes"}


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def main_text(page: bytes) -> str:
    """Return the words of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.decode()).split())


def test_a_group_that_is_named_stays_and_says_by_whom(client: Client) -> None:
    group = Group.objects.create(name="g3")
    alice = User.objects.create_user("alice", group="default")
    User.objects.create_user("carol", group="g3")
    token_create(user=alice, name="laptop", group="g3")
    channel("mine", group=group)
    Option.objects.create(name="AutoGroups", value=["g3"])
    one = f"{GROUPS}{group.pk}/delete/"
    many = {"action": "delete_selected", "_selected_action": [str(group.pk)]}

    pages = [
        client.get(one),
        client.post(one, CONFIRMED),
        client.post(GROUPS, many),
        client.post(GROUPS, many | CONFIRMED),
    ]

    for page in pages:
        said = main_text(page.content)
        assert "still named" in said
        assert "user carol token alice/laptop channel mine option AutoGroups" in said
        assert "object (" not in said
    assert Group.objects.filter(name="g3").exists()


def test_a_group_that_nobody_names_goes(client: Client) -> None:
    group = Group.objects.create(name="g3")
    User.objects.create_user("carol", group="other")

    client.post(f"{GROUPS}{group.pk}/delete/", CONFIRMED)

    assert not Group.objects.exists()


def test_a_channel_that_a_token_may_use_alone_stays(client: Client) -> None:
    row = channel("mine")
    token_create(
        user=User.objects.create_user("alice", is_staff=True), name="t", specific_channel="mine"
    )

    page = client.post(f"{CHANNELS}{row.pk}/delete/", CONFIRMED)

    assert "Channel mine is still named" in main_text(page.content)
    assert "token alice/t" in main_text(page.content)
    assert Channel.objects.exists()


def test_the_page_says_who_loses_what_with_a_channel(client: Client) -> None:
    alone, shared = Group.objects.create(name="alone"), Group.objects.create(name="shared")
    row = channel("mine", group=alone, keys=2, model_names=["a", "b"])
    row.groups.add(shared)
    channel("other", group=shared, model_names=["a*"])
    off = channel("off", group=alone)
    channels_set_enabled(channel_ids=[off.pk], is_enabled=False, reason="")
    carol = User.objects.create_user("carol", group="alone")
    token_create(user=carol, name="laptop", group="shared")

    said = main_text(client.get(f"{CHANNELS}{row.pk}/delete/").content)
    said_of_off = main_text(client.get(f"{CHANNELS}{off.pk}/delete/").content)
    client.post(
        CHANNELS,
        {"action": "delete_selected", "_selected_action": [str(row.pk)]} | CONFIRMED,
    )

    assert "These stay, but lose service: " in said
    assert "Group alone has no other channel in use. In it are user carol ." in said
    assert "Group shared has no other channel in use for b. In it are token carol/laptop ." in said
    assert "relationship" not in said
    assert "object (" not in said
    assert "lose service" not in said_of_off
    assert "&lt;" not in said
    assert not Channel.objects.filter(name="mine").exists()


def test_roles_of_a_user_are_not_listed_as_rows(client: Client) -> None:
    user = User.objects.create_user("alice")
    user.groups.add(Role.objects.create(name="support"))
    token_create(user=user, name="laptop")

    said = main_text(client.get(f"/admin/billing_app/user/{user.pk}/delete/").content)

    assert "Token: laptop" in said
    assert "object (" not in said
