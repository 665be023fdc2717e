"""When a webhook is tried again (contracts section 6), and how fast a receiver is sent to."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Waits between attempts, in seconds.

    ``first_seconds`` one after another, then ``then_seconds`` each time, every wait
    varied by ±``jitter_ratio``, until ``give_up_seconds`` after the webhook was made. A
    receiver's Retry-After prolongs a wait, by ``max_retry_after_seconds`` at most.
    """

    first_seconds: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
    then_seconds: float = 300.0
    give_up_seconds: float = 86_400.0
    jitter_ratio: float = 0.2
    max_retry_after_seconds: float = 3_600.0

    def wait(self, attempt: int, retry_after: float | None, rng: random.Random) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (the first is 1)."""
        index = attempt - 1
        base = self.first_seconds[index] if index < len(self.first_seconds) else self.then_seconds
        wait = base * rng.uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)
        if retry_after is not None:
            asked = min(retry_after, self.max_retry_after_seconds)
            wait = max(wait, asked * rng.uniform(1.0, 1 + self.jitter_ratio))
        return wait


class Pace:
    """At most ``per_second`` requests a second in the long run; a second's worth may come at once.

    Each call of :meth:`wait` reserves a turn (the generic cell rate algorithm: one number is all
    that is kept).
    """

    def __init__(self, per_second: float = 50.0) -> None:
        self._interval = 1 / per_second
        self._burst_seconds = max(0, int(per_second) - 1) * self._interval
        self._next_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the turn that this call reserves; ``now`` is Unix seconds."""
        if self._next_at > now + self._burst_seconds + 100 * self._interval:
            # More than any receiver's max_concurrent: the clock was set back.
            self._next_at = now
        due = max(self._next_at, now)
        self._next_at = due + self._interval
        return max(0.0, due - self._burst_seconds - now)
