"""When a webhook is tried again (contracts section 6)."""

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
