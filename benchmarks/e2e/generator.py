"""The generator process: publishes the load over MQTT and receives the webhooks.

It is told what to do over a pipe and answers with snapshots of what it did, so that the time
stamps of a sample and of its webhook come from one process and one clock.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.e2e.load import Bodies, Node, Plan, compose
from benchmarks.e2e.receiver import Receiver

INFLIGHT: Final = 100
"""Unacknowledged messages of one MQTT client."""
QUIET_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """``window``: messages published and not yet taken by the bridge, at most (history only)."""

    plan: Plan
    mqtt_host: str
    mqtt_port: int
    secret: str
    clients: int = 8
    window: int = 4_000


@dataclass(slots=True)
class Snapshot:
    """What the generator has done so far. Times are Unix seconds.

    ``behind_seconds`` is how far the next message's due time lies in the past; ``late_seconds``
    the most that it ever did since ``reset_late``. ``sent`` counts messages by (node key,
    minute) and is filled on demand. ``signs`` are ``(device, time stamp of the sample)``,
    ``webhooks`` are ``(device, type, cause, received at)``.
    """

    published: int = 0
    acknowledged: int = 0
    bytes: int = 0
    behind_seconds: float = 0.0
    late_seconds: float = 0.0
    signs: list[tuple[str, float]] = field(default_factory=list)
    webhooks: list[tuple[str, str, str, float]] = field(default_factory=list)
    unverified: int = 0
    sent: dict[tuple[str, int], int] = field(default_factory=dict)


class Generator:
    """Publishes one plan; ``step()`` does what is due and returns how long nothing is.

    It waits at the end of the slow history until it is told to go on.
    """

    def __init__(self, settings: GeneratorSettings, receiver: Receiver) -> None:
        self._settings = settings
        self._receiver = receiver
        self._nodes = settings.plan.nodes()
        self._bodies = Bodies(settings.plan.cards_a_node)
        self._acknowledged = 0
        self._clients = [self._client(i) for i in range(settings.clients)]
        self._due = self._schedule()
        self._next = next(self._due)
        self._seq: Counter[str] = Counter()
        self._uncorrected: dict[str, int] = {}
        self._signs: list[tuple[float, str, str]] = []
        self._sent: Counter[tuple[str, int]] = Counter()
        self._taken = 0
        self._publishing = False
        self._until = settings.plan.fast_from
        self.state = Snapshot()

    def _client(self, number: int) -> mqtt.Client:
        settings = self._settings
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"{settings.plan.run}-load-{number}",
            protocol=mqtt.MQTTv311,
        )
        client.max_inflight_messages_set(INFLIGHT)
        client.on_publish = self._on_publish
        client.connect(settings.mqtt_host, settings.mqtt_port)
        client.loop_start()
        return client

    def _on_publish(self, *_: object) -> None:
        self._acknowledged += 1  # under the interpreter's lock; a slip would only widen a window

    def _schedule(self) -> Iterator[tuple[float, float, Node, list[bytes]]]:
        plan = self._settings.plan
        for start, interval in plan.ticks():
            bodies = self._bodies.at(start - plan.start)
            for node in self._nodes:
                at = start + node.phase * plan.interval_seconds
                yield at, interval, node, bodies[node.base]

    def command(self, name: str, value: Any) -> Snapshot | None:
        """Do what the pipe asks; a snapshot where one was asked for."""
        if name == "publish":
            self._publishing = bool(value)
        elif name == "go_on":
            self._until = float("inf")
        elif name == "taken":
            self._taken = int(value)
        elif name == "signs":
            self._signs = sorted(value)
        elif name == "reset_late":
            self.state.late_seconds = 0.0
        elif name == "snapshot":
            first, last = value
            self.state.acknowledged = self._acknowledged
            self.state.behind_seconds = time.time() - self._next[0]
            self.state.webhooks = list(self._receiver.webhooks)
            self.state.unverified = self._receiver.unverified
            self.state.sent = {k: n for k, n in self._sent.items() if first <= k[1] < last}
            return self.state
        return None

    def step(self) -> float:
        """Publish what is due now; seconds until something may be due again."""
        if not self._publishing:
            return QUIET_SECONDS
        for _ in range(200):
            at, interval, node, bodies = self._next
            now = time.time()
            if at > min(now, self._until):
                return min(abs(at - now), 0.2)
            backlog = now - at > self._settings.plan.interval_seconds
            if backlog and self.state.published - self._taken >= self._settings.window:
                return QUIET_SECONDS
            # Live samples carry the instant they are taken at, as an agent's do.
            self._publish(node, bodies, at if backlog else now, interval, sign=not backlog)
            self.state.late_seconds = max(self.state.late_seconds, now - at)
            self._next = next(self._due)
        return 0.0

    def _publish(
        self, node: Node, bodies: list[bytes], ts: float, interval: float, *, sign: bool
    ) -> None:
        while sign and self._signs and self._signs[0][0] <= ts:
            due = next((s for s in self._signs if s[1] == node.key and s[0] <= ts), None)
            if due is None:
                break
            self._signs.remove(due)
            self._uncorrected[due[2]] = self._uncorrected.get(due[2], 0) + 1
            self.state.signs.append((due[2], ts))
        payload = compose(
            node, bodies, boot_id=self._settings.plan.run, seq=self._seq[node.key], ts=ts,
            interval=interval, uncorrected=self._uncorrected,
        )  # fmt: skip
        self._seq[node.key] += 1
        client = self._clients[self._seq_client(node)]
        client.publish(node.topic, payload, qos=1)
        self.state.published += 1
        self.state.bytes += len(payload)
        self._sent[node.key, int(ts // 60) * 60] += 1

    def _seq_client(self, node: Node) -> int:
        # All messages of a node go through one client, so that they stay in order.
        return int(node.phase * len(self._nodes)) % len(self._clients)

    def close(self) -> None:
        """Disconnect the clients."""
        for client in self._clients:
            client.disconnect()
            client.loop_stop()


def main(settings: GeneratorSettings, pipe: Connection) -> None:
    """Run until the other end of ``pipe`` says stop or goes away.

    The first message sent is the URL of the webhook receiver.
    """
    receiver = Receiver(settings.secret)
    pipe.send(receiver.url)
    generator: Generator | None = None
    try:
        for _ in itertools.count():
            wait = generator.step() if generator is not None else 0.2
            while pipe.poll(wait):
                name, value = pipe.recv()
                wait = 0.0
                if name == "stop":
                    return
                if name == "connect":
                    generator = Generator(settings, receiver)
                    pipe.send("connected")
                elif generator is not None:
                    answer = generator.command(name, value)
                    if answer is not None:
                        pipe.send(answer)
    except (EOFError, KeyboardInterrupt):
        return  # the benchmark itself ended
    finally:
        if generator is not None:
            generator.close()
        receiver.close()
