"""The values that authentication works with."""

from __future__ import annotations

from dataclasses import dataclass


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

    def is_expired(self, now_s: float) -> bool:
        """Return whether the token is past its time at Unix time `now_s`."""
        return self.expires_s is not None and now_s >= self.expires_s
