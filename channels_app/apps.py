"""App configuration of `channels_app`: where a request may go."""

from django.apps import AppConfig


class ChannelsConfig(AppConfig):
    """Channels, their keys and groups, and the options of the relay."""

    name = "channels_app"
    verbose_name = "Channels"
    default_auto_field = "django.db.models.BigAutoField"
