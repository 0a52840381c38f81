"""App configuration of `relay_app`: how requests are carried."""

from django.apps import AppConfig


class RelayConfig(AppConfig):
    """Request logs, and the signals that move the snapshot."""

    name = "relay_app"
    verbose_name = "Relay"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the signals."""
        from relay_app import signals

        signals.connect()
