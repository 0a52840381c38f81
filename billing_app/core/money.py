"""Money: integers in nano-dollars (1e-9 USD), exact for prices of three decimals per million
tokens. Text and decimals come in, text goes out; floats never.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction

NANO = 1_000_000_000
# What a database column of 64 bits holds.
MAX_NUSD = 2**63 - 1


def usd_to_nusd(amount: Decimal | str | int) -> int:
    """Return USD as nano-dollars; raise ValueError, also for more decimals than those have."""
    try:
        value = Decimal(amount)
    except InvalidOperation:
        raise ValueError(f"{amount!r} is no amount of USD, e.g. 12.50") from None
    # By its exponent first: arithmetic with 1e999999 overflows.
    if not value.is_finite() or value.adjusted() > 10 or abs(value) * NANO > MAX_NUSD:
        raise ValueError(f"{amount} USD is not between -9.2 and 9.2 billion")
    with localcontext() as context:
        context.prec = 40
        found = int(value * NANO)
        if found != value * NANO:
            raise ValueError(f"{amount} USD has more than 9 decimals")
    return found


def nusd_to_usd(amount_nusd: int) -> Decimal:
    """Return nano-dollars as USD, exactly."""
    return Decimal(amount_nusd).scaleb(-9)


def show_usd(amount_nusd: int, *, sign: str = "$") -> str:
    """Return nano-dollars as people read USD: at least two decimals, as many as it has."""
    whole, rest = divmod(abs(amount_nusd), NANO)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount_nusd < 0 else ''}{sign}{whole}.{decimals}"


def round_half_away(value: Fraction) -> int:
    """Return the nearest integer, halves away from zero."""
    magnitude = abs(value)
    whole = (2 * magnitude.numerator + magnitude.denominator) // (2 * magnitude.denominator)
    return -whole if value < 0 else whole
