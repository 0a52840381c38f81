"""The values that authentication works with."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A client's token as requests see it. `expires_s` is Unix time, None is never."""

    id: int
    name: str
    user_id: int
    user_name: str
    group: str
    is_enabled: bool = True
    expires_s: float | None = None
    models: tuple[str, ...] = ()
    user_group: str = ""
    is_cross_group: bool = False
    # The only channel that it uses; counts only for tokens of staff.
    specific_channel: str = ""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    # What it may spend, in nano-dollars: in all, in a day, in a month (UTC); None: no limit.
    limit_nusd: int | None = None
    daily_limit_nusd: int | None = None
    monthly_limit_nusd: int | None = None
    rpm: int = 0
    tpm: int = 0
    concurrency: int = 0

    @property
    def has_rates(self) -> bool:
        """Return whether requests of this token are counted at all."""
        return bool(self.rpm or self.tpm or self.concurrency)

    def is_expired(self, now_s: float) -> bool:
        """Return whether the token is past its time at Unix time `now_s`."""
        return self.expires_s is not None and now_s >= self.expires_s
