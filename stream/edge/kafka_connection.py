"""How to reach Kafka, from the bridge's settings."""

import ssl
from typing import Any, Final

from contract.errors import ConfigError
from stream.bridge_settings import BridgeSettings

REQUEST_TIMEOUT_MS: Final = 10_000


def connection_options(settings: BridgeSettings) -> dict[str, Any]:
    """Keyword arguments that every aiokafka client takes.

    Raises:
        ConfigError: when the certificate authority's file cannot be used.
    """
    s = settings
    options: dict[str, Any] = {
        "bootstrap_servers": [a.strip() for a in s.kafka.split(",")],
        "security_protocol": s.kafka_security.upper(),
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }
    if s.kafka_security.startswith("sasl"):
        options["sasl_mechanism"] = s.kafka_sasl_mechanism
        options["sasl_plain_username"] = s.kafka_username
        password = s.kafka_password
        options["sasl_plain_password"] = password.get_secret_value() if password else None
    if s.kafka_security.endswith("ssl"):
        try:
            options["ssl_context"] = ssl.create_default_context(
                cafile=str(s.kafka_ca_file) if s.kafka_ca_file else None
            )
        except OSError as error:
            raise ConfigError(f"kafka_ca_file {s.kafka_ca_file}: cannot use it: {error}") from error
    return options
