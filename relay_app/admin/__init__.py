"""The admin: pages of all three apps, for the people who run the relay.

They live here because their forms hold the apps against each other: the group of a token
must exist, the type of a channel must have an adapter, and fields are checked by the code
that reads configuration files.
"""

from relay_app.admin import (
    channels,
    codes,
    groups,
    home,
    money,
    options,
    prices,
    requests,
    sessions,
    tokens,
    users,
)

__all__ = [
    "channels",
    "codes",
    "groups",
    "home",
    "money",
    "options",
    "prices",
    "requests",
    "sessions",
    "tokens",
    "users",
]
