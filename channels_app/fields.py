"""A text field that is encrypted in the database."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.core.exceptions import FieldError, ImproperlyConfigured
from django.db import models

# Says which scheme a stored value uses, so that another can follow.
PREFIX = "enc1:"


@lru_cache(maxsize=8)
def _cipher(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])


class EncryptedTextField(models.TextField[str, str]):
    """Text encrypted at rest with the first of `RELAY_ENCRYPTION_KEYS`.

    All listed keys decrypt, so a key is rotated by putting the new one in front and
    saving the rows. A value that no key opens raises instead of coming back as it is
    stored: it would be sent upstream as a credential. Filtering is refused, since equal
    texts have different ciphertexts.
    """

    def get_prep_value(self, value: Any) -> Any:
        text = super().get_prep_value(value)
        if not text:
            return text
        cipher = _cipher(tuple(settings.RELAY_ENCRYPTION_KEYS))
        return PREFIX + cipher.encrypt(text.encode()).decode()

    def from_db_value(self, value: str | None, *_: object) -> str | None:
        if not value:
            return value
        if not value.startswith(PREFIX):
            raise ImproperlyConfigured(
                f"{self.model.__name__}.{self.name} holds a value that is not encrypted"
            )
        cipher = _cipher(tuple(settings.RELAY_ENCRYPTION_KEYS))
        try:
            return cipher.decrypt(value[len(PREFIX) :].encode()).decode()
        except InvalidToken:
            raise ImproperlyConfigured(
                f"{self.model.__name__}.{self.name} can't be decrypted: "
                "RELAY_ENCRYPTION_KEYS lacks the key it was written with"
            ) from None

    def get_lookup(self, lookup_name: str) -> Any:
        if lookup_name != "isnull":
            raise FieldError(f"{self.name} is encrypted and can't be filtered by")
        return super().get_lookup(lookup_name)
