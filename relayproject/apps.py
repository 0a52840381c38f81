"""App configuration of `relayproject`: its commands and system checks."""

from django.apps import AppConfig


class RelayProjectConfig(AppConfig):
    """The project as an app without models, so that `serve` and the checks are found."""

    name = "relayproject"

    def ready(self) -> None:
        """Register the system checks."""
        from relayproject import checks  # noqa: F401 - importing registers them
