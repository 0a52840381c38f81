"""The rules of the layout that a test can hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from django.urls import get_resolver

from relay_app import views
from relay_app.account_views import RedeemView
from relay_app.dialects.registry import DIALECTS
from relay_app.urls import ENDPOINTS

ROOT = Path(__file__).resolve().parent.parent


def test_import_contracts_hold():
    """core/ is pure, and the apps depend one way (pyproject.toml says how)."""
    linter = Path(sys.executable).parent / "lint-imports"

    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_every_relay_endpoint_goes_through_the_pipeline():
    """One execute path: a POST route of the relay is a RelayView, nothing else."""
    routes = {str(p.pattern): p.callback for p in get_resolver("relay_app.urls").url_patterns}

    for endpoint in ENDPOINTS:
        assert issubclass(routes[endpoint.path].view_class, views.RelayView)
        assert endpoint.dialect in DIALECTS
    others = {
        callback.view_class
        for pattern, callback in routes.items()
        if hasattr(callback, "view_class") and pattern not in {e.path for e in ENDPOINTS}
    }
    # A code is redeemed by the account's own view: nothing is asked of an upstream.
    assert {view for view in others if hasattr(view, "post")} == {RedeemView}


def test_modules_stay_small():
    """A file over 400 lines is two files."""
    for package in ("channels_app", "billing_app", "relay_app", "relayproject"):
        for path in (ROOT / package).rglob("*.py"):
            if "migrations" not in path.parts:
                assert len(path.read_text().splitlines()) <= 400, path
