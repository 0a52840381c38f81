"""Presets: option values that are set together, by name (spec 01 section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from channels_app.options import DEFAULT_RETRY_STATUSES

# An option that comes to the table later, such as those of health, is added here with it.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # One attempt unless RetryTimes says otherwise, then one tier lower each time.
        "newapi": MappingProxyType(
            {
                "RetryTimes": 0,
                "RetryStrategy": "tier_per_attempt",
                "SameChannelRetries": 0,
                "RetryAfterWaitMax": 3,
                "MaxSwitchesPerRequest": 8,
                "AutomaticRetryStatusCodes": DEFAULT_RETRY_STATUSES,
                "TotalTimeout": 600,
            }
        ),
        # Answers as long as any channel does.
        "resilient": MappingProxyType(
            {"RetryTimes": 3, "RetryStrategy": "untried_first", "SameChannelRetries": 1}
        ),
    }
)

# What each is for, in a few words.
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "newapi": "one attempt unless Retry times says otherwise, then one tier lower each time",
        "resilient": "an answer as long as any channel has one",
    }
)
