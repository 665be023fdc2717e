"""How long to wait before trying again."""

import random

MIN_SECONDS = 0.25
MAX_SECONDS = 15.0


def backoff_seconds(attempt: int, rng: random.Random) -> float:
    """Exponential with jitter: half to all of 0.25 s · 2**attempt, never over 15 s."""
    ceiling = min(MAX_SECONDS, MIN_SECONDS * 2.0 ** min(attempt, 16))
    return ceiling * (0.5 + rng.random() / 2)
