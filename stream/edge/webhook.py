"""Delivers signed webhooks (Standard Webhooks 1.0.0) until they are answered.

One lane a receiver: its own queue, connections and pace, so that a slow receiver delays nobody
else. Inside a lane the webhooks of one device go strictly one after another, those of different
devices side by side. Nothing here is remembered over a restart: the caller keeps its outbox and
submits again whatever ``on_delivered`` has not reported, under the same ``webhook_id``.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from contract.webhook_formats import Severity
from stream.edge.webhook_body import body
from stream.edge.webhook_delivery import Delivery, report
from stream.edge.webhook_http import Answer, Clock, Outgoing, Post, SystemClock
from stream.edge.webhook_schedule import Pace, Schedule
from stream.receivers import Receiver, check_unique

__all__ = ["Clock", "Deliverer", "Delivery", "Hooks", "Outgoing", "Schedule", "SystemClock", "body"]

log = logging.getLogger(__name__)

PING_KEY = "test.ping"


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a Deliverer tells its owner; all optional.

    ``on_ping_ok(receiver)``: first 2xx to this start's ``test.ping``. ``on_attempt(receiver,
    outcome, seconds)``: after each request, ``outcome`` one of ``webhook_http.OUTCOMES``.
    ``on_room(receiver)``: a queue that had refused webhooks has room again; submit all
    undelivered ones for it now, oldest first, before returning. ``on_crash(error)``: a callback
    of the owner raised; deliveries of that device have stopped, so end the process.
    """

    on_ping_ok: Callable[[str], Awaitable[None]] | None = None
    on_attempt: Callable[[str, str, float], None] | None = None
    on_room: Callable[[str], None] | None = None
    on_crash: Callable[[BaseException], None] | None = None


@dataclass(slots=True)
class _Lane:
    name: str
    post: Post | None
    free: asyncio.Semaphore
    closed_reason: str | None = None
    queues: dict[str, deque[Outgoing]] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    paused_until: float = 0.0
    pace: Pace = field(default_factory=Pace)
    refused: bool = False
    failing: bool = False


class Deliverer:
    """Sends webhooks to receivers, with retries, in order per device.

    Make and use it inside the running event loop; ``close()`` ends it. ``on_delivered`` is
    awaited once a webhook is delivered or given up, before the next one of that device goes.
    ``capacity`` bounds the webhooks that wait, per receiver.

    Raises:
        ConfigError: when two receivers share a name or a URL cannot be used.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        on_delivered: Callable[[Delivery], Awaitable[None]],
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        schedule: Schedule | None = None,
        hooks: Hooks | None = None,
        capacity: int = 10_000,
    ) -> None:
        self._receivers = check_unique(tuple(receivers))
        self._on_delivered = on_delivered
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._schedule = schedule or Schedule()
        self._hooks = hooks or Hooks()
        self._capacity = capacity
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lanes = {
            r.name: _Lane(
                r.name,
                Post(r, self._clock),
                asyncio.Semaphore(r.max_concurrent),
                pace=Pace(r.requests_per_second),
            )
            for r in self._receivers
            if r.enabled
        }

    def receivers_for(self, webhook_type: str, site: str, severity: Severity) -> list[str]:
        """Names of the receivers that a webhook goes to.

        One that has answered 410 is among them: what it misses becomes a dead letter.
        """
        return [r.name for r in self._receivers if r.wants(webhook_type, site, severity)]

    def depth(self) -> dict[str, int]:
        """Webhooks that wait or are being sent, by receiver."""
        return {name: len(lane.ids) for name, lane in self._lanes.items()}

    def submit(self, outgoing: Outgoing) -> bool:
        """Take a webhook for delivery; never waits.

        Returns False when the receiver's queue is full (keep it, ``Hooks.on_room`` calls) or the
        deliverer is closed. Submitting what already waits changes nothing and returns True. A
        receiver that is no longer configured gets its webhook reported ``dead``.
        """
        if self._closed:
            return False
        lane = self._lanes.get(outgoing.receiver)
        if lane is None:
            reason = f"receiver {outgoing.receiver!r} is not configured (any more)"
            lane = _Lane(outgoing.receiver, None, asyncio.Semaphore(1), closed_reason=reason)
            self._lanes[outgoing.receiver] = lane
        if outgoing.webhook_id in lane.ids:
            return True
        # Once one is refused all are, until there is room: none may overtake it.
        if lane.refused or len(lane.ids) >= self._capacity:
            lane.refused = True
            return False
        self._enqueue(lane, outgoing)
        return True

    def ping(self) -> None:
        """Send ``test.ping`` to every enabled receiver, with the usual retries."""
        for lane in self._lanes.values():
            if lane.post is None:
                continue
            now = self._clock.time()
            ping_id = f"ping_{self._rng.getrandbits(128):032x}"
            data = {"receiver": lane.name}
            self._enqueue(
                lane,
                Outgoing(
                    webhook_id=ping_id,
                    type="test.ping",
                    site="",
                    device_key=PING_KEY,
                    body=body("test.ping", round(now * 1000), data),
                    receiver=lane.name,
                    created_at=now,
                ),
            )

    def withdraw(self, belongs: Callable[[str], bool]) -> None:
        """Stop sending for the device keys that ``belongs`` says, without a report.

        For what another worker sends from now on (its partition went there). A request in flight
        is broken off; the receiver knows the webhook by its id when it comes again.
        """
        for lane in self._lanes.values():
            for device_key in [key for key in lane.queues if key != PING_KEY and belongs(key)]:
                lane.ids.difference_update(o.webhook_id for o in lane.queues.pop(device_key))
                self._retire(lane, device_key).cancel()
            self._make_room(lane)

    async def close(self) -> None:
        """Stop at once; what is undelivered stays with the owner. Safe to call twice."""
        self._closed = True
        tasks = [*self._ending, *(t for lane in self._lanes.values() for t in lane.tasks.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            if lane.post is not None:
                await lane.post.close()

    def _enqueue(self, lane: _Lane, outgoing: Outgoing) -> None:
        if outgoing.created_at is None:
            outgoing = outgoing.made_at(self._clock.time())
        lane.ids.add(outgoing.webhook_id)
        queue = lane.queues.get(outgoing.device_key)
        if queue is not None:
            queue.append(outgoing)
            return
        lane.queues[outgoing.device_key] = deque((outgoing,))
        task = asyncio.get_running_loop().create_task(self._drain(lane, outgoing.device_key))
        lane.tasks[outgoing.device_key] = task
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("webhook delivery stopped: %s", error, exc_info=error)
        if self._hooks.on_crash is not None:
            self._hooks.on_crash(error)

    async def _drain(self, lane: _Lane, device_key: str) -> None:
        queue = lane.queues[device_key]
        while queue:
            outgoing = queue[0]
            delivery = await self._deliver(lane, outgoing)
            if outgoing.type != "test.ping":
                await self._on_delivered(delivery)
            elif delivery["status"] == "delivered" and self._hooks.on_ping_ok is not None:
                await self._hooks.on_ping_ok(lane.name)
            queue.popleft()
            lane.ids.discard(outgoing.webhook_id)
            if lane.queues.get(device_key) is not queue:
                return  # withdrawn by the owner in on_delivered
            if not queue:  # before on_room, which may submit for this very device
                del lane.queues[device_key]
                self._retire(lane, device_key)
            self._make_room(lane)

    def _retire(self, lane: _Lane, device_key: str) -> asyncio.Task[None]:
        """Take a device's task out of the lane; it may be replaced before it has ended."""
        task = lane.tasks.pop(device_key)
        self._ending.add(task)
        return task

    def _make_room(self, lane: _Lane) -> None:
        if lane.refused and len(lane.ids) <= self._capacity // 2:
            lane.refused = False
            if self._hooks.on_room is not None:
                self._hooks.on_room(lane.name)

    async def _deliver(self, lane: _Lane, outgoing: Outgoing) -> Delivery:
        created_at = outgoing.created_at or self._clock.time()
        give_up_at = created_at + self._schedule.give_up_seconds
        attempt = 0
        error = ""
        while True:
            if lane.closed_reason is not None or lane.post is None:
                return report(outgoing, attempt, lane.closed_reason or error, None)
            answer = await self._attempt(lane, lane.post, outgoing)
            if answer is None:  # the receiver was closed while this one waited its turn
                continue
            attempt += 1
            if answer.outcome == "delivered":
                return report(outgoing, attempt, None, self._clock.time())
            error = answer.detail
            if answer.outcome == "gone":
                continue
            wait = self._schedule.wait(attempt, answer.retry_after, self._rng)
            now = self._clock.time()
            if now + wait > give_up_at:
                hours = self._schedule.give_up_seconds / 3600
                log.error(
                    "receiver %s: gave up %s %s after %d attempts and %.3g h: %s",
                    lane.name,
                    outgoing.type,
                    outgoing.webhook_id,
                    attempt,
                    hours,
                    error,
                )
                return report(outgoing, attempt, f"gave up: {error}", None)
            await self._clock.sleep(wait)

    async def _attempt(self, lane: _Lane, post: Post, outgoing: Outgoing) -> Answer | None:
        """One request when the lane is free and not paused; ``None`` when it has been closed."""
        while True:
            async with lane.free:
                if lane.closed_reason is None and lane.paused_until <= self._clock.time():
                    wait = lane.pace.wait(self._clock.time())
                    if wait > 0:
                        await self._clock.sleep(wait)
                pause = lane.paused_until - self._clock.time()
                if lane.closed_reason is not None:
                    return None
                if pause <= 0:
                    started = self._clock.time()
                    answer = await post.send(outgoing)
                    break
            await self._clock.sleep(pause)
        if self._hooks.on_attempt is not None:
            self._hooks.on_attempt(lane.name, answer.outcome, self._clock.time() - started)
        self._note(lane, post, answer)
        return answer

    def _note(self, lane: _Lane, post: Post, answer: Answer) -> None:
        """What one answer says about the receiver as a whole; logged when it changes."""
        if answer.outcome == "delivered":
            if lane.failing:
                log.warning("receiver %s answers again", lane.name)
            lane.failing = False
            return
        if answer.outcome == "gone" and lane.closed_reason is None:
            lane.closed_reason = f"receiver {lane.name!r} answered 410 Gone and is disabled"
            log.error("%s; remove it from the settings, or fix it and restart", lane.closed_reason)
        elif not lane.failing:
            log.warning(
                "receiver %s (%s): %s; trying again by schedule",
                lane.name,
                post.receiver.where,
                answer.detail,
            )
        lane.failing = True
        if answer.throttled and answer.retry_after is not None:
            pause = min(answer.retry_after, self._schedule.max_retry_after_seconds)
            lane.paused_until = max(lane.paused_until, self._clock.time() + pause)
