"""The worker as a process, and a receiver of its webhooks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_worker import Receiver, WorkerProcess


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def start_worker(
    tmp_path: Path, any_kafka: Any, receiver: Receiver, free_port: Callable[[], int]
) -> Iterator[Callable[..., WorkerProcess]]:
    made: list[WorkerProcess] = []

    def start(instance: str = "w0") -> WorkerProcess:
        worker = WorkerProcess(tmp_path, any_kafka, receiver.url, free_port(), instance)
        worker.start()
        made.append(worker)
        return worker

    yield start
    for worker in made:
        if worker.process is not None and worker.process.poll() is None:
            worker.kill()
