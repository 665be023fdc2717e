"""How to reach Kafka, from the settings of any process."""

import ssl
from typing import Any, Final

from contract.errors import ConfigError
from stream.kafka_settings import KafkaSettings

REQUEST_TIMEOUT_MS: Final = 10_000


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments that every aiokafka client takes.

    Raises:
        ConfigError: when a certificate's file cannot be used.
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
    context = tls_context(s)
    if context is not None:
        options["ssl_context"] = context
    return options


def tls_context(settings: KafkaSettings) -> ssl.SSLContext | None:
    """What the TLS of ``settings`` asks for; None where there is none.

    Raises:
        ConfigError: when a certificate's file cannot be used.
    """
    s = settings
    if not s.kafka_security.endswith("ssl"):
        return None
    try:
        context = ssl.create_default_context(
            cafile=str(s.kafka_ca_file) if s.kafka_ca_file else None
        )
    except OSError as error:
        raise ConfigError(f"kafka_ca_file {s.kafka_ca_file}: cannot use it: {error}") from error
    if s.kafka_cert_file is not None and s.kafka_key_file is not None:
        try:
            context.load_cert_chain(s.kafka_cert_file, s.kafka_key_file)
        except OSError as error:
            raise ConfigError(
                f"kafka_cert_file {s.kafka_cert_file} with kafka_key_file {s.kafka_key_file}: "
                f"cannot use them: {error}"
            ) from error
    return context
