"""Settings of the webhook receivers: who is told of decisions, and how.

A receiver is one ``[[receivers]]`` table of the worker's TOML. Everything that is wrong with one
is said in a single line that names the receiver and what to do, never with the secret or the
URL's path in it (chat hooks carry their credential there).
"""

import base64
import binascii
import ipaddress
from pathlib import Path
from typing import Any, Final, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from contract.decision import WebhookType
from contract.errors import ConfigError
from contract.topics import is_name
from contract.webhook_formats import ENDS, SEVERITIES, Severity, WebhookFormat

WEBHOOK_TYPES: Final[tuple[WebhookType, ...]] = get_args(WebhookType)
SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = (24, 64)
"""Length of the decoded secret, inclusive (Standard Webhooks 1.0.0)."""
MAX_SECRET_FILE_BYTES: Final = 4096
MAX_SECRETS: Final = 2
"""The one in force, and while it is being replaced the one before."""
UNSIGNED_FORMATS: Final = ("alertmanager", "slack")
"""Formats whose receivers verify no signature: their secret may be left out."""

# What the standard library of Python 3.11 takes for public though it is not: Azure's metadata and
# DNS address, and IETF protocol assignments (Oracle's metadata among them). Other clouds' metadata
# addresses (169.254.169.254, 100.100.100.200, fd00:ec2::254) lie in blocks it knows.
_NOT_PUBLIC_V4: Final = tuple(
    ipaddress.IPv4Network(block) for block in ("168.63.129.16/32", "192.0.0.0/24")
)
_GLOBAL_UNICAST_V6: Final = ipaddress.IPv6Network("2000::/3")  # all that IANA has ever given out
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the IPv4 address is its tail

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: IpAddress) -> bool:
    """Whether ``address`` is an ordinary address of the public internet.

    Loopback, private, link-local, multicast, carrier-grade NAT, reserved and cloud metadata
    addresses are not, nor are IPv6 spellings that carry such an IPv4 address (mapped, 6to4,
    Teredo, NAT64).
    """
    if isinstance(address, ipaddress.IPv4Address):
        return (
            address.is_global
            and not address.is_multicast
            and not any(address in block for block in _NOT_PUBLIC_V4)
        )
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    carried = [*(address.teredo or ()), *filter(None, [address.sixtofour])]
    return (
        address in _GLOBAL_UNICAST_V6
        and (bool(carried) or address.is_global)
        and all(is_public(inner) for inner in carried)
    )


def parse_address(host: str) -> IpAddress | None:
    """``host`` as an IP address, or ``None`` when it is a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _read_secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"secret_file {path} cannot be read ({error.strerror})") from None
    if len(raw) > MAX_SECRET_FILE_BYTES:
        raise ValueError(
            f"secret_file {path} is over {MAX_SECRET_FILE_BYTES} bytes; "
            f"it must hold one {SECRET_PREFIX}… line"
        )
    try:
        return raw.decode().strip()
    except UnicodeDecodeError:
        raise ValueError(
            f"secret_file {path} is not text; it must hold one {SECRET_PREFIX}… line"
        ) from None


def _check_secret(secret: str) -> None:
    fix = (
        f"give {SECRET_PREFIX} followed by the base64 of {SECRET_BYTES[0]} to "
        f"{SECRET_BYTES[1]} random bytes, as the receiver has it"
    )
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError(f"secret does not start with {SECRET_PREFIX}; {fix}")
    text = secret[len(SECRET_PREFIX) :].rstrip("=")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"secret is not base64 after {SECRET_PREFIX}; {fix}") from None
    if not SECRET_BYTES[0] <= len(key) <= SECRET_BYTES[1]:
        raise ValueError(f"secret decodes to {len(key)} bytes; {fix}")


class Receiver(BaseModel):
    """One webhook receiver.

    Give ``secret`` or ``secret_file`` (read once, here): one secret, or two with white space
    between them while one replaces the other; every request is then signed with both. ``format``
    is the payload's shape. ``types``, ``sites`` and ``min_severity`` say which webhooks it wants,
    all by default; ``test.ping`` always goes, and an end is never kept back for its severity.
    ``allow_private`` permits addresses that are not on the public internet. ``max_concurrent``
    bounds the requests in flight to it, ``max_per_second`` how many are begun (a second's worth
    may come at once); by default 50, for ``slack`` 1.

    Raises:
        ConfigError: one line naming the receiver, the setting and the fix. Nothing else is
            raised for bad values, so that no caller can print the input by accident.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str
    url: str = Field(repr=False)
    secret: SecretStr = SecretStr("")
    secret_file: Path | None = None
    format: WebhookFormat = "standard"
    allow_private: bool = False
    types: tuple[WebhookType, ...] = WEBHOOK_TYPES
    sites: tuple[str, ...] = ()
    min_severity: Severity = "info"
    timeout_seconds: float = Field(default=15.0, ge=1.0, le=30.0)
    max_concurrent: int = Field(default=8, ge=1, le=64)
    max_per_second: float | None = Field(default=None, gt=0, le=1000)
    enabled: bool = True

    @property
    def where(self) -> str:
        """``scheme://host[:port]`` of the URL: what logs and errors may show."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The live secrets, the one in force first; none where nothing is signed."""
        return tuple(self.secret.get_secret_value().split())

    @property
    def requests_per_second(self) -> float:
        """Requests that may be begun a second, in the long run."""
        if self.max_per_second is not None:
            return self.max_per_second
        return 1.0 if self.format == "slack" else 50.0  # Slack's documented limit a hook

    def wants(self, webhook_type: str, site: str, severity: Severity) -> bool:
        """Whether a webhook of this type, site and severity goes to this receiver."""
        if not self.enabled or webhook_type == "test.ping":
            return self.enabled
        grave = SEVERITIES.index(severity) >= SEVERITIES.index(self.min_severity)
        return (
            webhook_type in self.types
            and (not self.sites or site in self.sites)
            and (grave or webhook_type in ENDS)
        )

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        name = data.get("name") if isinstance(data, dict) else getattr(data, "name", None)
        try:
            receiver = handler(data)
            _complete(receiver)
            return receiver
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            setting = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            message = f"{setting}: {message}" if setting else message
        except ValueError as error:
            message = str(error)
        raise ConfigError(f"receiver {str(name or '(without name)')!r:.80}: {message}")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError("use 1 to 64 letters, digits, '.', '_' or '-'")
        return value

    @field_validator("types", mode="before")
    @classmethod
    def _types(cls, value: object) -> object:
        if value == "all":
            return WEBHOOK_TYPES
        known = ", ".join(WEBHOOK_TYPES)
        if not isinstance(value, list | tuple):
            raise ValueError(f'give "all" or a list of {known}')
        for item in value:
            if item not in WEBHOOK_TYPES:
                raise ValueError(f"{str(item)!r:.60} is no webhook type; known are {known}")
        return value

    @field_validator("sites")
    @classmethod
    def _sites(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for site in value:
            if not is_name(site):
                raise ValueError(f"{site!r:.60} is no site's name")
        return value

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018 - raises for a port that is no number
        except ValueError:
            raise ValueError("is no URL; give http://HOST[:PORT]/PATH or https://…") from None
        if not value.isprintable() or " " in value:
            raise ValueError("holds a space or control character; write it as %20 or take it out")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be http://HOST[:PORT]/PATH or https://…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("holds a user or password; the signature authenticates, take it out")
        if parts.fragment:
            raise ValueError("holds a '#' fragment, which no server ever sees; take it out")
        return value


def _complete(receiver: Receiver) -> None:
    """Check what concerns several settings at once, and read the secret's file.

    Raises:
        ValueError: with the words for a person.
    """
    secret = receiver.secret.get_secret_value()
    if receiver.secret_file is not None:
        if secret:
            raise ValueError("both secret and secret_file are given; keep one")
        secret = _read_secret(receiver.secret_file)
        # The model is frozen for its users; this fills it in once, before anyone has it.
        object.__setattr__(receiver, "secret", SecretStr(secret))
    if not secret.split() and receiver.format not in UNSIGNED_FORMATS:
        raise ValueError(
            f'secret is missing; give secret = "{SECRET_PREFIX}…" or secret_file = "PATH"'
        )
    if len(receiver.secrets) > MAX_SECRETS:
        raise ValueError(
            f"{len(receiver.secrets)} secrets are given; give the new one and the one before"
        )
    for one in receiver.secrets:
        _check_secret(one)
    if receiver.format == "alertmanager" and not urlsplit(receiver.url).path.endswith("/alerts"):
        raise ValueError("url: an Alertmanager takes alerts at http://HOST:9093/api/v2/alerts")
    host = urlsplit(receiver.url).hostname or ""
    address = parse_address(host)
    local = host == "localhost" or host.endswith(".localhost")
    if not receiver.allow_private and (local or (address and not is_public(address))):
        raise ValueError(
            f"url: {host} is not on the public internet; set allow_private = true if that is meant"
        )


def check_unique(receivers: tuple[Receiver, ...]) -> tuple[Receiver, ...]:
    """The receivers as given.

    Raises:
        ConfigError: when two have the same name.
    """
    seen: set[str] = set()
    for receiver in receivers:
        if receiver.name in seen:
            raise ConfigError(f"receiver {receiver.name!r} is there twice; give each its own name")
        seen.add(receiver.name)
    return receivers
