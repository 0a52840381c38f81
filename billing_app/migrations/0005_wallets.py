"""Give every account its wallet, with the opening balance as its first entry."""

from typing import Any

from django.db import migrations

SLICE = 1_000


def open_wallets(apps: Any, schema_editor: Any) -> None:
    users = apps.get_model("billing_app", "User").objects.order_by("pk")
    wallets = apps.get_model("billing_app", "Wallet").objects
    entries = apps.get_model("billing_app", "LedgerEntry").objects
    last_id = 0
    while True:
        page = list(users.filter(pk__gt=last_id).values_list("pk", "opening_balance_nusd")[:SLICE])
        if not page:
            return
        last_id = page[-1][0]
        wallets.bulk_create(
            [
                wallets.model(user_id=pk, available_nusd=amount, credited_nusd=amount)
                for pk, amount in page
            ]
        )
        entries.bulk_create(
            [
                entries.model(
                    wallet_id=pk,
                    kind="top_up" if amount > 0 else "adjustment",
                    amount_nusd=amount,
                    balance_nusd=amount,
                    reason="opening balance",
                )
                for pk, amount in page
                if amount
            ]
        )


class Migration(migrations.Migration):
    dependencies = [("billing_app", "0004_money")]

    operations = [migrations.RunPython(open_wallets, migrations.RunPython.noop)]
