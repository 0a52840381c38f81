"""The admin behind a proxy: which scheme is believed, what cookies say, and a wrong host."""

from __future__ import annotations

import logging
import re
from ipaddress import ip_network
from typing import Any

import pytest
from django.test import Client

from billing_app.models import User
from tests.support.admin_rows import PASSWORD, operator, signed_in, token_form

pytestmark = pytest.mark.django_db

LOGIN = "/admin/login/?next=/admin/"
HTTPS = {"X-Forwarded-Proto": "https"}


@pytest.fixture(autouse=True)
def _proxy(settings: Any) -> None:
    settings.TRUSTED_PROXIES = [ip_network("172.30.99.250/32")]


def sign_in(client: Client, **request: Any) -> Any:
    """Sign in as a browser behind the proxy does; return the answer."""
    page = client.get(LOGIN, **request)
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.content.decode())
    assert token
    form = {"username": "op", "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
    return client.post(LOGIN, form, **request)


@pytest.mark.parametrize(
    ("peer", "headers", "is_secure"),
    [
        ("172.30.99.250", HTTPS, True),
        ("172.30.99.250", {"X-Forwarded-Proto": "http"}, False),
        ("172.30.99.250", {}, False),
        ("203.0.113.7", HTTPS, False),  # anybody can send it
        ("", HTTPS, False),
    ],
)
def test_cookies_are_secure_when_a_trusted_proxy_says_https(
    peer: str, headers: dict[str, str], is_secure: bool
) -> None:
    operator()

    response = sign_in(Client(), headers=headers, REMOTE_ADDR=peer)

    assert response.status_code == 302
    flags = {name: bool(cookie["secure"]) for name, cookie in response.cookies.items()}
    assert flags == {"sessionid": is_secure, "csrftoken": is_secure}


def test_forms_behind_tls_need_no_list_of_origins() -> None:
    operator()
    headers = {**HTTPS, "Origin": "https://localhost", "Host": "localhost"}

    trusted = sign_in(
        Client(enforce_csrf_checks=True), headers=headers, REMOTE_ADDR="172.30.99.250"
    )
    untrusted = sign_in(Client(enforce_csrf_checks=True), headers=headers, REMOTE_ADDR="127.0.0.9")

    assert (trusted.status_code, untrusted.status_code) == (302, 403)


def test_addresses_of_a_new_token_have_the_scheme_of_the_browser() -> None:
    client = signed_in(operator())
    form = token_form(User.objects.create_user("alice"))

    headers = {**HTTPS, "Host": "localhost:8443"}
    page = client.post(
        "/admin/billing_app/token/add/", form, headers=headers, REMOTE_ADDR="172.30.99.250"
    ).content.decode()

    addresses = re.findall(r'<code class="relay-code">(http[^<]*)</code>', page)
    assert addresses == ["https://localhost:8443/v1", "https://localhost:8443"]


def test_a_wrong_host_is_told_what_to_set_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        response = Client().get("/admin/", headers={"Host": "<relay>.example.com"})

    page = response.content.decode()
    assert response.status_code == 400
    assert "host name &lt;relay&gt;.example.com" in page
    assert "ALLOWED_HOSTS" in page
    assert [(r.levelname, r.exc_info) for r in caplog.records] == [("WARNING", None)]
    assert "ALLOWED_HOSTS" in caplog.records[0].getMessage()
