"""Start of the worker process: model, topics, Faust's loop."""

import asyncio
import logging
import random
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from contract.errors import ConfigError, RigcanaryError
from contract.topics import COMMANDS, EVENTS, TELEMETRY
from stream.edge.faust_worker import FaustWorker
from stream.edge.kafka_connection import connection_options
from stream.edge.model_watch import Source
from stream.edge.shared import History, Predictor
from stream.edge.topics import ensure_topics, replicas
from stream.edge.worker import Worker
from stream.settings import WorkerSettings

log = logging.getLogger("rigcanary.worker")

CONNECT_ATTEMPTS = 8


async def prepare_topics(settings: WorkerSettings) -> tuple[int, int]:
    """Create the topics that are absent.

    Returns the number of partitions of telemetry, and of replicas for the tables' changelogs.

    Raises:
        RigcanaryError: when Kafka cannot be reached.
        ConfigError: when the topics do not have the same number of partitions.
    """
    for attempt in range(CONNECT_ATTEMPTS):
        try:
            return await _prepare_topics(settings)
        except (KafkaError, OSError) as error:
            if attempt == CONNECT_ATTEMPTS - 1:
                raise RigcanaryError(
                    f"Kafka at {settings.kafka} cannot be reached: {error}; "
                    "is it running, and is --kafka right?"
                ) from error
            await asyncio.sleep(min(5.0, 0.2 * 2**attempt) * random.uniform(0.7, 1.3))
    raise AssertionError("unreachable")


async def _prepare_topics(settings: WorkerSettings) -> tuple[int, int]:
    admin = AIOKafkaAdminClient(**connection_options(settings))
    try:
        await admin.start()
        await ensure_topics(
            admin,
            settings.partitions,
            settings.replication_factor,
            min_insync=settings.min_insync_replicas,
        )
        found = {
            topic["topic"]: len(topic["partitions"])
            for topic in await admin.describe_topics([TELEMETRY, EVENTS, COMMANDS])
        }
        copies = await replicas(admin, settings.replication_factor)
    finally:
        await admin.close()
    counts = {name: found.get(name) for name in (TELEMETRY, EVENTS, COMMANDS)}
    if len(set(counts.values())) != 1 or not found.get(TELEMETRY):
        raise ConfigError(
            f"Kafka topics {', '.join(counts)} must have the same number of partitions, "
            f"they have {', '.join(map(str, counts.values()))}; recreate those that differ"
        )
    return found[TELEMETRY], copies


def _load(model: str) -> Predictor:
    from models.serve import load

    predictor: Predictor = load(model)
    return predictor


def _source(model: str) -> Source | None:
    from models.registry_source import source_of

    return source_of(model)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"state {folder}: cannot make the folder: {error.strerror}") from error


def _histories(settings: WorkerSettings) -> list[History]:
    if settings.state is None:
        return []
    # pyarrow costs a second of start and 60 MB: only where it is used.
    from stream.edge.history_parquet import ParquetHistory

    return [ParquetHistory(Path(settings.state) / "history")]


def run(settings: WorkerSettings) -> int:
    """Run the worker until it is told to stop; returns the exit code.

    Raises:
        ConfigError: when the model or a port cannot be used.
        RigcanaryError: when Kafka cannot be reached, or the worker crashed.
    """
    predictor = _load(settings.model)
    if settings.state is not None:
        _make_folder(settings.state)
    partitions, copies = asyncio.run(prepare_topics(settings))
    settings = settings.model_copy(update={"replication_factor": copies})
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = Worker(settings, partitions, predictor, _histories(settings), _source(settings.model))
    faust_worker = FaustWorker(
        worker, loop=loop, override_logging=False, redirect_stdouts=False, quiet=True
    )
    code = 0
    try:
        faust_worker.execute_from_commandline()
    except SystemExit as finished:
        code = int(finished.code or 0)
    failure = faust_worker.failure
    if isinstance(failure, RigcanaryError):
        raise failure
    if failure is not None:
        raise RigcanaryError(f"the worker ended: {failure!r}; see the log") from failure
    return code
