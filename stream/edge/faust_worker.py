"""Faust's worker process: our servers before it starts, draining before it stops."""

import asyncio
import logging
import signal
from typing import Any

import faust

from stream.edge.worker import Worker

log = logging.getLogger("rigcanary.worker")


class FaustWorker(faust.Worker):
    """Faust's worker, draining before it stops."""

    def __init__(self, worker: Worker, **kwargs: Any) -> None:
        self._rigcanary = worker
        self._stop_task: asyncio.Task[None] | None = None
        super().__init__(worker.app, **kwargs)
        self.spinner = None  # it would write the terminal's escape codes into the log

    @property
    def failure(self) -> BaseException | None:
        """What made the worker end, if anything did."""
        return self._rigcanary.failure

    async def on_first_start(self) -> None:
        port = await self._rigcanary.start_web()
        log.info("page at http://%s:%d/", self._rigcanary.shared.settings.web_host, port)
        for history in self._rigcanary.shared.histories:
            await history.start()
        self._rigcanary.start_deliverer()
        await super().on_first_start()

    def install_signal_handlers(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop_task is None:
            self._stop_task = self.loop.create_task(self._drain_and_stop(number))

    async def _drain_and_stop(self, number: signal.Signals) -> None:
        try:
            if self._rigcanary.shared.settings.profile == "embedded":
                await asyncio.wait_for(self._rigcanary.drain(), 10.0)
            await self._rigcanary.stop_edges()
        except TimeoutError:
            log.warning("stopping without having stored every open minute: Kafka is too slow")
        finally:
            self._schedule_shutdown(number)
