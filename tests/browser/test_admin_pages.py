"""The admin in Chromium, served by the live relay: pages, dialogs, widths, no outside calls."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

from billing_app.models import LedgerEntry, RedemptionCode, Token
from channels_app.models import Channel, Option
from tests.support.admin_rows import PASSWORD, many_rows, operator
from tests.support.relay import LiveRelay

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = {"desk": 1280, "phone": 400}
PAGES = [
    "/admin/",
    "/admin/channels_app/channel/",
    "/admin/channels_app/channel/add/",
    "/admin/channels_app/group/",
    "/admin/channels_app/option/",
    "/admin/channels_app/option/preset/resilient/",
    "/admin/billing_app/user/",
    "/admin/billing_app/user/add/",
    "/admin/billing_app/token/",
    "/admin/billing_app/token/add/",
    "/admin/billing_app/wallet/",
    "/admin/billing_app/ledgerentry/",
    "/admin/billing_app/billingsession/",
    "/admin/billing_app/price/add/",
    "/admin/billing_app/redemptioncode/",
    "/admin/billing_app/redemptioncode/make",
    "/admin/auth/group/add/",
    "/admin/relay_app/requestlog/",
    "/admin/why/",
]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.django_db(transaction=True),
]


class Faults:
    """What a page must not do: call elsewhere, or complain."""

    def __init__(self, page: Page, url: str) -> None:
        self.found: list[str] = []
        self._url = url
        page.on("request", lambda request: self._asked(request.url))
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on(
            "console",
            lambda line: line.type == "error" and self.found.append(f"console: {line.text}"),
        )

    def _asked(self, url: str) -> None:
        if not url.startswith((self._url, "data:", "blob:")):
            self.found.append(f"asked for {url}")


@contextmanager
def browser_page(relay: LiveRelay, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
    """Yield a page that is signed in. The database is out of reach while it is open:
    Playwright runs an event loop in this thread, which Django refuses to block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]  # "light" or "dark"
        )
        faults = Faults(page, relay.url)
        page.goto(f"{relay.url}/admin/")
        sign_in(page, PASSWORD)
        page.wait_for_selector("#nav-sidebar-apps", state="attached")
        yield page
        browser.close()
        assert faults.found == []


def sign_in(page: Page, password: str) -> None:
    page.fill("[name=username]", "op")
    page.fill("[name=password]", password)
    page.click("button[type=submit]")


def is_cut_off(page: Page, selector: str) -> bool:
    cut: bool = page.evaluate(
        "selector => { const box = document.querySelector(selector);"
        " return box.scrollWidth > box.clientWidth }",
        selector,
    )
    return cut


def is_too_wide(page: Page) -> bool:
    wide: bool = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    return wide


@pytest.fixture
def rows(transactional_db: None, relay: LiveRelay) -> dict[str, str]:
    """Make rows; return what the tests need to know of them."""
    from relay_app.models import RequestLog

    operator()
    many_rows(3)
    channel, token = Channel.objects.get(name="c01"), Token.objects.all()[1]
    return {
        "channel": f"/admin/channels_app/channel/{channel.pk}/change/",
        "channel_delete": f"/admin/channels_app/channel/{channel.pk}/delete/",
        "group_delete": f"/admin/channels_app/group/{channel.groups.all()[0].pk}/delete/",
        "channel_history": f"/admin/channels_app/channel/{channel.pk}/history/",
        "token": f"/admin/billing_app/token/{token.pk}/change/",
        "user": f"/admin/billing_app/user/{token.user_id}/change/",
        "wallet": f"/admin/billing_app/wallet/{token.user_id}/change/",
        "request_id": RequestLog.objects.get(user_name="u01").request_id,
    }


@pytest.mark.parametrize(("width", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_every_page_fits_and_stays_local(
    relay: LiveRelay, rows: dict[str, str], width: str, scheme: str
) -> None:
    names = ["channel", "channel_history", "channel_delete", "group_delete", "token", "user"]
    names.append("wallet")
    forms = [rows[name] for name in names]
    with browser_page(relay, WIDTHS[width], scheme) as page:
        for path in [*PAGES, *forms, f"/admin/why/?id={rows['request_id']}"]:
            response = page.goto(relay.url + path)
            page.wait_for_load_state("load")
            assert response is not None
            assert response.status == 200, path
            assert not is_too_wide(page), path


def test_channel_is_disabled_in_a_dialog(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay) as page:
        page.goto(relay.url + rows["channel"])
        page.get_by_role("link", name="Disable").click()
        page.fill("#dialog [name=reason]", "maintenance")
        page.click("#dialog button[type=submit]")
        page.wait_for_selector("text=1 channel disabled.")
        assert page.url == relay.url + rows["channel"]
        assert "op: maintenance" in page.content()

    assert Channel.objects.get(name="c01").status == "disabled"


def test_key_is_typed_and_never_shown_again(relay: LiveRelay, rows: dict[str, str]) -> None:
    key = "sk-planted-in-browser-0123456789"
    with browser_page(relay) as page:
        page.goto(relay.url + rows["channel"])
        page.click("text=Add another Key")
        page.fill("[name=keys-2-new_value]", key)
        page.click("button[name=_continue]")
        page.wait_for_selector("text=was changed successfully")
        assert "sk-p…6789" in page.content()
        assert key not in page.content()
        assert page.input_value("[name=keys-2-new_value]") == ""

    assert [k.value for k in Channel.objects.get(name="c01").keys.all()][-1] == key


def test_headers_and_a_proxy_are_typed_and_never_shown_again(
    relay: LiveRelay, rows: dict[str, str]
) -> None:
    with browser_page(relay) as page:
        page.goto(relay.url + rows["channel"])
        assert not page.locator("[name=header_override]").is_visible()
        page.click("summary:has-text('Changes to requests')")
        page.fill("[name=header_override]", '{"X-Secret": "planted-header-0123"}')
        page.click("summary:has-text('Proxy and special cases')")
        page.fill("[name=new_proxy]", "http://u:planted-password@127.0.0.1:9")
        page.click("button[name=_continue]")
        page.wait_for_selector("text=was changed successfully")
        assert "planted" not in page.content().replace("sk-planted", "")
        assert '"X-Secret": "•••"' in page.input_value("[name=header_override]")
        page.click("summary:has-text('Proxy and special cases')")
        page.check("[name=is_proxy_removed]", force=True)
        page.click("button[name=_continue]")
        page.wait_for_selector("text=was changed successfully")

    channel = Channel.objects.get(name="c01")
    assert (channel.header_override, channel.proxy) == ({"X-Secret": "planted-header-0123"}, "")


def test_a_part_of_the_form_with_an_error_is_open(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay, WIDTHS["phone"], "dark") as page:
        page.goto(relay.url + rows["channel"])
        page.click("summary:has-text('Limits and health')")
        page.fill("[name=limits]", '{"rpn": 1}')
        page.click("button[name=_continue]")
        page.wait_for_selector("text=unknown key; did you mean rpm?")
        assert page.locator("[name=limits]").is_visible()
        assert not page.locator("[name=model_mapping]").is_visible()
        assert not is_too_wide(page)


def test_options_are_edited_as_fields(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay) as page:
        page.goto(f"{relay.url}/admin/channels_app/option/")
        page.fill("[name=AutomaticRetryStatusCodes]", "500-")
        page.click("button[name=_save]")
        line = page.locator("#option-AutomaticRetryStatusCodes")
        assert "is not a status like 429" in line.inner_text()
        page.fill("[name=AutomaticRetryStatusCodes]", "429, 500-503")
        page.fill("[name=RetryTimes]", "3")
        page.select_option("[name=RetryStrategy]", "exhaust_tier")
        page.fill("[name=ModelFallbacks]", '{"a": ["b"]}')
        page.click("button[name=_save]")
        page.wait_for_selector("text=Changed: RetryTimes, AutomaticRetryStatusCodes, RetryStrategy")
        assert "changed" in page.locator("#option-RetryTimes").inner_text().lower()

    stored = {option.name: option.value for option in Option.objects.all()}
    assert stored == {
        "RetryTimes": 3,
        "AutomaticRetryStatusCodes": "429,500-503",
        "RetryStrategy": "exhaust_tier",
        "ModelFallbacks": {"a": ["b"]},
    }


def test_a_preset_is_applied_after_a_look(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay) as page:
        page.goto(f"{relay.url}/admin/channels_app/option/")
        page.click("#presets >> text=resilient")
        assert "RetryTimes: 0 -> 3" in page.inner_text("#preset-changes")
        page.click("text=Apply the preset")
        page.wait_for_selector("text=Preset resilient applied")

    assert Option.objects.get(name="RetryTimes").value == 3


def test_token_is_made_and_its_key_shown_once(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay) as page:
        page.goto(f"{relay.url}/admin/billing_app/token/add/")
        page.click(".select2-selection")
        page.click(".select2-results__option:has-text('u01')")
        page.fill("[name=name]", "browser")
        page.click("button[name=_save]")
        key = page.inner_text("#token-key")
        assert key.startswith("sk-relay-")
        page.click("text=Open the token")
        page.wait_for_selector("[name=name]")
        assert key not in page.content()

    assert Token.objects.get(name="browser").hint == f"{key[:4]}…{key[-4:]}"


def test_a_top_up_is_paid_once_however_often_it_is_clicked(
    relay: LiveRelay, rows: dict[str, str]
) -> None:
    with browser_page(relay) as page:
        page.goto(relay.url + rows["wallet"])
        page.click("text=Top up")
        page.fill("[name=reason]", "invoice 7")
        page.fill("[name=amount]", "1,5")
        page.click("#modal-content button[type=submit]")
        page.wait_for_selector("text=no comma")
        assert page.input_value("[name=amount]") == "1,5"
        page.fill("[name=amount]", "1.5")
        page.dblclick("#modal-content button[type=submit]")
        page.wait_for_selector("text=$1.50 paid in")

    assert LedgerEntry.objects.count() == 1
    assert LedgerEntry.objects.get().amount_nusd == 1_500_000_000


def test_codes_are_made_and_shown_once(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay, WIDTHS["phone"]) as page:
        page.goto(f"{relay.url}/admin/billing_app/redemptioncode/make")
        page.fill("[name=batch]", "spring")
        page.fill("[name=count]", "2")
        page.fill("[name=amount]", "2.5")
        page.click("#codes-form button[type=submit]")
        codes = page.inner_text("#codes").split()
        assert not is_too_wide(page)
        page.click("text=All codes")
        page.wait_for_selector("text=spring")
        assert codes[0] not in page.content()

    assert len(codes) == 2
    hints = set(RedemptionCode.objects.values_list("hint", flat=True))
    assert hints == {f"{code[:4]}…{code[-4:]}" for code in codes}


def test_request_is_found_from_its_row_and_from_an_error_text(
    relay: LiveRelay, rows: dict[str, str]
) -> None:
    request_id = rows["request_id"]
    with browser_page(relay) as page:
        page.goto(f"{relay.url}/admin/relay_app/requestlog/")
        page.click(f"text={request_id[:8]}")
        page.wait_for_selector("#attempts")
        assert "come back later" in page.inner_text("#attempts")

        page.goto(f"{relay.url}/admin/")
        page.fill("[name=id]", f"The server is overloaded (request id: {request_id})")
        page.click("text=Find")
        page.wait_for_selector("#attempts")
        assert request_id in page.content()


def test_a_wrong_password_is_told_once(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay) as page:
        page.context.clear_cookies()
        page.goto(f"{relay.url}/admin/")
        sign_in(page, "wrong")
        page.wait_for_selector("text=Please enter the correct username")
        assert page.locator(".errornote:visible").count() == 1


def test_words_of_the_search_are_whole(relay: LiveRelay, rows: dict[str, str]) -> None:
    with browser_page(relay) as page:
        page.goto(f"{relay.url}/admin/")
        assert not is_cut_off(page, "[x-on\\:click*=opencommand] .truncate")
