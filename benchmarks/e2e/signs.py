"""Which cards report uncorrected memory errors when, within what each site may move."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from benchmarks.e2e.load import Node
from stream.budget import BudgetPolicy

MAX_SIGNS: Final = 400
_END_SECONDS: Final = 6.0
"""No sign in the last seconds: it could not be delivered before the end."""


def plan_signs(
    nodes: Sequence[Node], start: float, end: float, seed: int = 7
) -> list[tuple[float, str, str]]:
    """``(not before, node key, device)`` for as many cards as the budget lets be moved.

    At most ``window_limit`` and ``open_limit`` cards a site in all, evenly spread over the time.
    """
    policy = BudgetPolicy()
    sites: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for node in nodes:
        sites[node.site] += [(node.key, device) for device in node.devices]
    rng = random.Random(seed)
    chosen: list[tuple[str, str]] = []
    for cards in sites.values():
        limit = min(policy.window_limit(len(cards)), policy.open_limit(len(cards)))
        chosen += rng.sample(cards, min(limit, len(cards)))
    rng.shuffle(chosen)
    chosen = chosen[:MAX_SIGNS]
    span = max(1.0, end - start - _END_SECONDS)
    return [(start + span * i / len(chosen), key, device) for i, (key, device) in enumerate(chosen)]
