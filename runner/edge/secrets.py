"""The runner's two secrets, and how a request proves that it knows one."""

import base64
import binascii
import hmac
import os
import secrets as random_source
from pathlib import Path
from typing import Final

from pydantic import SecretStr
from standardwebhooks.webhooks import (
    EmptyWebhookSecretError,
    Webhook,
    WebhookVerificationError,
)

from contract.errors import ConfigError, RigcanaryError

TOKEN_FILE: Final = "token"
WEBHOOK_SECRET_FILE: Final = "webhook-secret"
WEBHOOK_SECRET_BYTES: Final = 32
"""Standard Webhooks asks for 24 to 64 bytes."""
MAX_WEBHOOK_ID: Final = 256


class Rejected(Exception):
    """A webhook whose signature does not hold; the message says why."""


class WebhookVerifier:
    """Checks Standard Webhooks signatures against one or several secrets."""

    def __init__(self, secrets: SecretStr) -> None:
        """``secrets``: ``whsec_…``, several separated by blanks.

        Raises:
            ConfigError: when one of them is not a secret.
        """
        try:
            self._webhooks = [Webhook(s) for s in secrets.get_secret_value().split()]
        except (binascii.Error, EmptyWebhookSecretError, ValueError) as error:
            raise ConfigError(
                "webhook_secret: not of the form whsec_BASE64; leave it out to have one made"
            ) from error
        if not self._webhooks:
            raise ConfigError("webhook_secret: is empty; leave it out to have one made")

    def verify(self, raw: bytes, headers: dict[str, str]) -> str:
        """The webhook's id, once the signature and the time are found good.

        Raises:
            Rejected: else.
        """
        problem = "no signature"
        if len(headers.get("webhook-id", "")) > MAX_WEBHOOK_ID:
            raise Rejected("webhook-id is too long")
        for webhook in self._webhooks:
            try:
                webhook.verify(raw, headers, json_parse=False)
                return headers["webhook-id"]
            except WebhookVerificationError as error:
                problem = str(error)
            except (ValueError, OverflowError):  # a malformed header, or a body that is not UTF-8
                problem = "malformed signature, time stamp or body"
        raise Rejected(problem)


class TokenCheck:
    """Compares bearer tokens in constant time."""

    def __init__(self, token: SecretStr) -> None:
        self._token = token.get_secret_value().strip().encode()

    def __call__(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def read_or_make(path: Path, make: bool) -> SecretStr:
    """The secret in a file of the state folder; made (mode 0600) when it is not there.

    Raises:
        ConfigError: when the file is empty or cannot be read.
        RigcanaryError: when it cannot be written.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        if make:
            return _make(path)
        raise ConfigError(f"{path} is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    if not text:
        raise ConfigError(f"{path} is empty; remove it to have a new one made")
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return SecretStr(text)


def new_webhook_secret() -> str:
    """A fresh ``whsec_…``."""
    key = random_source.token_bytes(WEBHOOK_SECRET_BYTES)
    return "whsec_" + base64.b64encode(key).decode()


def _make(path: Path) -> SecretStr:
    webhook = path.name == WEBHOOK_SECRET_FILE
    text = new_webhook_secret() if webhook else random_source.token_urlsafe(32)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text + "\n")
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RigcanaryError(f"{path}: cannot write it: {error.strerror}") from error
    return SecretStr(text)
