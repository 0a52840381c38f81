#!/usr/bin/env python3
"""Django's command line, with two promises kept from the first line on.

SIGTERM or SIGINT ends `serve` with exit code 0 at any moment, also while Django is still being
imported; and a wrong setting ends any command with one line instead of a traceback.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command named on the command line."""
    if sys.argv[1:2] == ["serve"]:
        # Nothing is running yet that would need stopping. `serve` installs its own handler
        # before it starts anything.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "relayproject.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"configuration: {error}")


if __name__ == "__main__":
    main()
