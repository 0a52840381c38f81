"""App configuration of `billing_app`: who asks, and what it costs."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Users and their tokens."""

    name = "billing_app"
    verbose_name = "Billing"
    default_auto_field = "django.db.models.BigAutoField"
