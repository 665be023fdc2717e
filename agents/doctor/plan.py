"""A link plan of Tenstorrent cards: read from a file, checked against itself.

The format (TOML, or JSON of the same shape) is described in docs/doctor.md. Ports are counted
from 1; a Blackhole p150a or p150b has four QSFP-DD ports.
"""

import re
import tomllib
from collections import Counter, deque
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contract.errors import ConfigError

PORTS: Final = 4

_END: Final = re.compile(r"(?P<card>.+):(?P<port>\d+)")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class PlanCard(_Strict):
    """A card; ``device`` (PCI address) or ``chip`` (tt-umd's number) names the real one."""

    name: Annotated[str, Field(min_length=1)]
    device: str | None = None
    chip: int | None = None
    ports: Annotated[int, Field(ge=1, le=16)] = PORTS


class Cable(_Strict):
    """A cable between two ports, each written ``CARD:PORT``."""

    name: Annotated[str, Field(min_length=1)]
    from_: Annotated[str, Field(alias="from")]
    to: str

    @property
    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """((card, port), (card, port)).

        Raises:
            ConfigError: an end is not ``CARD:PORT``.
        """
        return self._end(self.from_), self._end(self.to)

    def _end(self, text: str) -> tuple[str, int]:
        found = _END.fullmatch(text)
        if found is None:
            raise ConfigError(f"cable {self.name}: {text!r} is not CARD:PORT, such as a:1")
        return found["card"], int(found["port"])


class Plan(_Strict):
    """Cards, cables, and which layout they are to make."""

    layout: Literal["full-mesh", "ring", "any"] = "full-mesh"
    cards: Annotated[list[PlanCard], Field(min_length=1, max_length=64)]
    cables: Annotated[list[Cable], Field(max_length=512)] = []


def read(path: Path) -> Plan:
    """The plan in ``path``, TOML unless its name ends in ``.json``.

    Raises:
        ConfigError: the file cannot be read or is no plan; one line that names it.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw: Any = orjson.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text: {error.reason}") from error
    except (tomllib.TOMLDecodeError, orjson.JSONDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ConfigError(f"{path}: not {kind}: {str(error).splitlines()[0]}") from error
    try:
        plan = Plan.model_validate(raw)
        for cable in plan.cables:
            cable.ends  # noqa: B018  # raises where it is misspelt
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the plan"
        raise ConfigError(f"{path}: {where}: {first['msg']}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return plan


Pair = tuple[str, str]


def pair(one: str, other: str) -> Pair:
    """The two cards in the order of their names."""
    return (one, other) if one <= other else (other, one)


def pairs(plan: Plan) -> Counter[Pair]:
    """How many cables join each pair of cards."""
    found: Counter[Pair] = Counter()
    for cable in plan.cables:
        (one, _), (other, _) = cable.ends
        if one != other:
            found[pair(one, other)] += 1
    return found


def check(plan: Plan) -> list[str]:
    """What is wrong with the plan, a line each that names the cable and the port; none if good."""
    return [*_twice(plan), *_ends(plan), *_layout(plan)]


def _twice(plan: Plan) -> list[str]:
    lines = []
    for what, names in (("card", plan.cards), ("cable", plan.cables)):
        for name, times in Counter(thing.name for thing in names).items():
            if times > 1:
                lines.append(f"{what} {name}: the name is used {times} times")
    for key in ("device", "chip"):
        given = [getattr(card, key) for card in plan.cards if getattr(card, key) is not None]
        lines += [
            f"{key} {value}: given to {times} cards"
            for value, times in Counter(given).items()
            if times > 1
        ]
    return lines


def _ends(plan: Plan) -> list[str]:
    lines = []
    ports = {card.name: card.ports for card in plan.cards}
    used: dict[tuple[str, int], str] = {}
    for cable in plan.cables:
        one, other = cable.ends
        for card, port in (one, other):
            where = f"cable {cable.name}: port {card}:{port}"
            if card not in ports:
                lines.append(f"{where}: there is no card {card}")
            elif not 1 <= port <= ports[card]:
                lines.append(f"{where}: card {card} has the ports 1 to {ports[card]}")
            elif (card, port) in used:
                lines.append(f"{where} is already taken by cable {used[card, port]}")
            used.setdefault((card, port), cable.name)
        if one[0] == other[0]:
            lines.append(
                f"cable {cable.name}: ports {one[0]}:{one[1]} and {other[0]}:{other[1]} are of "
                "one card"
            )
    return lines


def _layout(plan: Plan) -> list[str]:
    names = [card.name for card in plan.cards]
    joined = {p: n for p, n in pairs(plan).items() if set(p) <= set(names)}
    lines = []
    if plan.layout == "full-mesh":
        wanted = list(combinations(sorted(set(names)), 2))
        for one, other in wanted:
            if (one, other) not in joined:
                lines.append(
                    f"cards {one} and {other}: no cable joins them (a full mesh of {len(names)} "
                    f"takes {len(wanted)} cables); free: {_free(plan, one, other)}"
                )
        for ends, times in joined.items():
            if times > 1:
                lines.append(
                    f"cables {', '.join(_between(plan, ends))}: {times} join {ends[0]} and "
                    f"{ends[1]}; a full mesh has one a pair"
                )
    elif plan.layout == "ring":
        neighbours = Counter(name for ends in joined for name in ends)
        wanted_neighbours = min(2, len(names) - 1)
        lines += [
            f"card {name}: {neighbours[name]} neighbours; in a ring it has {wanted_neighbours} "
            f"(its cables: {', '.join(_of_card(plan, name)) or 'none'})"
            for name in names
            if neighbours[name] != wanted_neighbours
        ]
    if plan.layout != "full-mesh":
        reached = hops(plan, names[0])
        away = [name for name in names if name not in reached]
        if away:
            lines.append(f"cards {', '.join(away)}: no path from {names[0]}")
    return lines


def hops(plan: Plan, start: str) -> dict[str, int]:
    """How many cables lie between ``start`` and each card that can be reached from it."""
    reached = {start: 0}
    queue = deque([start])
    joined = pairs(plan)
    while queue:
        here = queue.popleft()
        for ends in joined:
            if here in ends:
                there = ends[0] if ends[1] == here else ends[1]
                if there not in reached:
                    reached[there] = reached[here] + 1
                    queue.append(there)
    return reached


def summary(plan: Plan) -> dict[str, Any]:
    """Cards, cables and hops of the plan; hops are None between cards without a path."""
    names = [card.name for card in plan.cards]
    table = {one: {other: hops(plan, one).get(other) for other in names} for one in names}
    known = [h for row in table.values() for h in row.values() if h is not None]
    return {
        "layout": plan.layout,
        "cards": len(names),
        "cables": len(plan.cables),
        "hops": table,
        "hops_most": max(known, default=0),
    }


def _between(plan: Plan, ends: Pair) -> list[str]:
    return [c.name for c in plan.cables if pair(c.ends[0][0], c.ends[1][0]) == ends]


def _of_card(plan: Plan, name: str) -> list[str]:
    return [c.name for c in plan.cables if name in (c.ends[0][0], c.ends[1][0])]


def _free(plan: Plan, *names: str) -> str:
    used = {end for cable in plan.cables for end in cable.ends}
    free = [
        f"{card.name}:{port}"
        for card in plan.cards
        if card.name in names
        for port in range(1, card.ports + 1)
        if (card.name, port) not in used
    ]
    return ", ".join(free) or "no port"
