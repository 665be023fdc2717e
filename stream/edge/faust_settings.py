"""Settings of the Faust app, and what only the embedded broker needs of them."""

import tempfile
from typing import Any

import faust

from stream.edge.kafka_connection import tls_context
from stream.settings import WorkerSettings
from stream.topic_settings import MAX_RECORD_BYTES


def faust_settings(settings: WorkerSettings, partitions: int) -> dict[str, Any]:
    """Settings of the Faust app; what only the embedded broker needs stands in one place."""
    common: dict[str, Any] = {
        "id": settings.app_id,
        "broker": [f"kafka://{address.strip()}" for address in settings.kafka.split(",")],
        "store": "memory://",
        "datadir": str(settings.state / "faust" if settings.state else tempfile.gettempdir()),
        "autodiscover": False,
        "web_enabled": False,
        "topic_partitions": partitions,
        "topic_replication_factor": settings.replication_factor or 1,
        "topic_disable_leader": True,
        # Held records would keep a revoke or a stop waiting for acknowledgements that cannot
        # come any more; they are read again instead.
        "stream_wait_empty": False,
        "broker_session_timeout": settings.session_seconds,
        "broker_heartbeat_interval": min(3.0, settings.session_seconds / 3),
        "broker_commit_interval": 1.0,
        "worker_redirect_stdouts": False,
        "producer_max_request_size": MAX_RECORD_BYTES,
    }
    credentials = _credentials(settings)
    if credentials is not None:
        common["broker_credentials"] = credentials
    if settings.instance is not None:
        common["consumer_group_instance_id"] = f"{settings.app_id}-{settings.instance}"
    if settings.profile == "embedded":
        # Tansu's end offsets are wrong after a batch of several records, and a restart with
        # standbys reads everything again.
        common |= {"producer_max_batch_size": 1, "table_standby_replicas": 0}
    return common


def _credentials(settings: WorkerSettings) -> Any:
    """Login and TLS as Faust takes them; None for plain text without a login."""
    context = tls_context(settings)
    if settings.kafka_security.startswith("sasl") and settings.kafka_password is not None:
        return faust.SASLCredentials(
            username=settings.kafka_username,
            password=settings.kafka_password.get_secret_value(),
            ssl_context=context,
            mechanism=settings.kafka_sasl_mechanism,
        )
    return faust.SSLCredentials(context) if context is not None else None
