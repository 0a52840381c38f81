"""What a token has spent, and what it could still spend."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from django.db.models import Sum
from django.utils import timezone

from billing_app.models import BillingSession, Token, TokenAccount, Wallet


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Amounts in nano-dollars; None: no such limit. `available_nusd` is the least of what the
    wallet and the token's limits leave."""

    spent_nusd: int
    reserved_nusd: int
    available_nusd: int
    wallet_available_nusd: int
    limit_nusd: int | None
    daily_limit_nusd: int | None
    monthly_limit_nusd: int | None
    spent_today_nusd: int
    spent_this_month_nusd: int
    expires_at: datetime | None


def token_usage(token_id: int) -> TokenUsage:
    """Return the spending of a token, with what its open requests have reserved."""
    token = Token.objects.get(pk=token_id)
    wallet = Wallet.objects.filter(user_id=token.user_id).first() or Wallet()
    account = TokenAccount.objects.filter(token_id=token_id).first() or TokenAccount()
    today = timezone.now().astimezone(UTC).date()
    today_nusd = account.day_nusd if account.day == today else 0
    month_nusd = account.month_nusd if account.month == today.replace(day=1) else 0
    limit_nusd = token.total_limit_nusd
    left = [
        wallet.available_nusd,
        *_left(limit_nusd, account.spent_nusd + account.reserved_nusd),
        *_left(token.daily_limit_nusd, today_nusd),
        *_left(token.monthly_limit_nusd, month_nusd),
    ]
    return TokenUsage(
        spent_nusd=account.spent_nusd,
        reserved_nusd=account.reserved_nusd,
        available_nusd=min(left),
        wallet_available_nusd=wallet.available_nusd,
        limit_nusd=limit_nusd,
        daily_limit_nusd=token.daily_limit_nusd,
        monthly_limit_nusd=token.monthly_limit_nusd,
        spent_today_nusd=today_nusd,
        spent_this_month_nusd=month_nusd,
        expires_at=token.expires_at,
    )


def spent_between(token_id: int, *, first: date, last: date) -> int:
    """Return what requests of the token cost that ended on these days (UTC), both included."""
    begin = datetime.combine(first, time.min, tzinfo=UTC)
    end = datetime.combine(last, time.max, tzinfo=UTC)
    sessions = BillingSession.objects.filter(
        token_id=token_id, ended_at__gte=begin, ended_at__lte=end
    )
    totals = sessions.aggregate(settled=Sum("settled_nusd"), fees=Sum("fee_nusd"))
    return (totals["settled"] or 0) + (totals["fees"] or 0)


def _left(limit_nusd: int | None, used_nusd: int) -> list[int]:
    return [] if limit_nusd is None else [limit_nusd - used_nusd]
