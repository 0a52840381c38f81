"""What a token may ask about its own money: usage, OpenAI's billing paths, redemption codes."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import orjson
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from billing_app.core.money import show_usd
from billing_app.core.types import TokenView
from billing_app.services import CodeRefusedError, CreditRefusedError, code_redeem
from billing_app.trust import LedgerAwayError
from billing_app.usage_report import TokenUsage, spent_between, token_usage
from relay_app.core.types import Endpoint
from relay_app.errors import BillingUnavailable, InvalidRequest
from relay_app.views import DialectView

READ_S = 5.0
MAX_CODE_BYTES = 4096
# The code may be redeemed all the same, a little later.
UNSURE = "the accounts answer too slowly now; look at GET /v1/usage before you try the code again"
AWAY = "the accounts can't be reached now; try again in 5 s"


class AccountView(DialectView):
    """A path that tells or changes what a token's owner has."""

    endpoint = Endpoint(name="usage", dialect="openai", path="", upstream_path="", is_free=True)

    async def read(self, work: Any) -> Any:
        """Return what `work` reads from the database; raise BillingUnavailable."""
        try:
            async with asyncio.timeout(READ_S):
                return await self.runtime.ledger.read(work)
        except (TimeoutError, LedgerAwayError):
            raise BillingUnavailable(AWAY) from None

    async def usage(self) -> tuple[TokenView, TokenUsage]:
        """Return the token and its usage, open requests of this process included."""
        token = await self.authenticate()
        return token, await self.read(partial(token_usage, token.id))


class UsageView(AccountView):
    """GET /v1/usage."""

    async def get(self, request: Request) -> HttpResponseBase:
        """Return the token's spending as JSON, amounts as integers and as USD."""
        token, usage = await self.usage()
        amounts = {
            "spent": usage.spent_nusd,
            "reserved": usage.reserved_nusd,
            "available": usage.available_nusd,
            "wallet_available": usage.wallet_available_nusd,
            "limit": usage.limit_nusd,
            "daily_limit": usage.daily_limit_nusd,
            "monthly_limit": usage.monthly_limit_nusd,
            "spent_today": usage.spent_today_nusd,
            "spent_this_month": usage.spent_this_month_nusd,
        }
        document: dict[str, Any] = {"object": "usage", "token": token.name}
        document |= {f"{name}_nusd": amount for name, amount in amounts.items()}
        document |= {
            f"{name}_usd": None if amount is None else show_usd(amount, sign="")
            for name, amount in amounts.items()
        }
        return _json(orjson.dumps(document))


class SubscriptionView(AccountView):
    """GET /v1/dashboard/billing/subscription: what the token may spend, as OpenAI's dashboard."""

    async def get(self, request: Request) -> HttpResponseBase:
        """Return the limit: what was spent and what is left of wallet and token."""
        _, usage = await self.usage()
        limit = show_usd(usage.spent_nusd + max(0, usage.available_nusd), sign="")
        until = int(usage.expires_at.timestamp()) if usage.expires_at else 0
        # Amounts are written as they are: a float would round them.
        body = (
            '{"object":"billing_subscription","has_payment_method":true,'
            f'"soft_limit_usd":{limit},"hard_limit_usd":{limit},'
            f'"system_hard_limit_usd":{limit},"access_until":{until}}}'
        )
        return _json(body.encode())


class SpendingView(AccountView):
    """GET /v1/dashboard/billing/usage: what was spent, in US cents, as OpenAI's dashboard."""

    async def get(self, request: Request) -> HttpResponseBase:
        """Return the total of the days `start_date` to `end_date`, or of all time."""
        token, usage = await self.usage()
        first, last = _day(request, "start_date"), _day(request, "end_date")
        spent_nusd = usage.spent_nusd
        if first or last:
            days = {"first": first or date(1970, 1, 1), "last": last or datetime.now(UTC).date()}
            spent_nusd = await self.read(partial(spent_between, token.id, **days))
        cents = show_usd(spent_nusd * 100, sign="")
        return _json(f'{{"object":"list","daily_costs":[],"total_usage":{cents}}}'.encode())


class RedeemView(AccountView):
    """POST /v1/redeem: pays a redemption code into the wallet of the token's owner."""

    async def post(self, request: Request) -> HttpResponseBase:
        """Return what was paid in and what the wallet has now."""
        token = await self.authenticate()
        code = self._code()
        try:
            paid = await self.read(partial(code_redeem, code=code, user_id=token.user_id))
        except (CodeRefusedError, CreditRefusedError) as error:
            raise InvalidRequest(str(error), param="code") from None
        except BillingUnavailable:
            raise BillingUnavailable(UNSURE) from None
        finally:
            self.runtime.ledger.forget_balance(token.user_id)
        document = {
            "object": "redemption",
            "amount_nusd": paid.amount_nusd,
            "amount_usd": show_usd(paid.amount_nusd, sign=""),
            "wallet_available_nusd": paid.balance_nusd,
            "wallet_available_usd": show_usd(paid.balance_nusd, sign=""),
        }
        return _json(orjson.dumps(document))

    def _code(self) -> str:
        body = self.relay_request.body
        try:
            document = orjson.loads(body) if len(body) <= MAX_CODE_BYTES else None
        except orjson.JSONDecodeError:
            document = None
        code = document.get("code") if isinstance(document, dict) else None
        if not isinstance(code, str) or not code.strip():
            raise InvalidRequest('send a JSON object like {"code": "..."}', param="code")
        return code.strip()


def _day(request: Request, name: str) -> date | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise InvalidRequest(f"{name} must be a day like 2026-01-31", param=name) from None


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(body, content_type="application/json")
