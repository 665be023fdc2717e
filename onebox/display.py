"""Where the demo is shown: a live screen, or log lines (``--plain``, or no terminal)."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live

from onebox import view
from onebox.facts import Facts
from onebox.processes import State

_FRAME_SECONDS: Final = 0.5
_STATUS_SECONDS: Final = 15.0

PrintLine = Callable[[str], None]


class Display(Protocol):
    """What the demo tells a person while it runs."""

    def step(self, name: str, state: State, detail: str = "") -> None:
        """A part changed its state."""
        ...

    def notice(self, text: str) -> None:
        """Something worth a line."""
        ...

    async def run(self) -> None:
        """Show until cancelled."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Screen:
    """A live screen of rich; nothing else may write to the terminal meanwhile."""

    def __init__(self, facts: Facts, stage: view.Stage) -> None:
        self._facts = facts
        self._stage = stage
        self._console = Console()
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stderr=False,
            redirect_stdout=False,
        )
        self._live.start()

    def step(self, name: str, state: State, detail: str = "") -> None:
        update_step(self._stage, name, state, detail)
        self._draw()

    def notice(self, text: str) -> None:
        self._stage.notice = text

    async def run(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(_FRAME_SECONDS)

    def _draw(self) -> None:
        width, height = self._console.size
        now = time.monotonic()
        self._live.update(view.screen(self._facts, self._stage, width, height, now), refresh=True)

    def close(self) -> None:
        self._live.stop()


class Lines:
    """Log lines: the start, decisions, moves, and a status now and then."""

    def __init__(self, facts: Facts, stage: view.Stage, print_line: PrintLine) -> None:
        self._facts = facts
        self._stage = stage
        self._print = print_line
        self._seen: dict[str, str] = {}
        self._status_at = 0.0

    def step(self, name: str, state: State, detail: str = "") -> None:
        step = update_step(self._stage, name, state, detail)
        if self._stage.sim_seconds is not None and state != "failed":
            return  # parts that end in order are no news
        seconds = step.seconds(time.monotonic())
        if state == "ready" and seconds is not None:
            self._print(f"{name}: ready after {seconds:.1f} s")
        else:
            self._print(f"{name}: {state}{f' ({detail})' if detail else ''}")

    def notice(self, text: str) -> None:
        self._print(text)

    async def run(self) -> None:
        while True:
            self._news()
            await asyncio.sleep(_FRAME_SECONDS)

    def _news(self) -> None:
        facts, stage = self._facts, self._stage
        for decision in sorted(facts.decisions.values(), key=lambda d: (d.at, d.decision_id)):
            self._once(decision.decision_id, view.describe(decision, stage.sim_start))
        for move in facts.moves():
            place = move["to"] or {"node": "…", "device": None}
            self._once(
                str(move["id"]),
                f"migration of the job off {move['device']}: {move['state']}, "
                f"to {place['node']}/{place['device']}",
            )
        now = time.monotonic()
        if stage.sim_seconds is not None and stage.sim_seconds >= 0 and now >= self._status_at:
            self._status_at = now + _STATUS_SECONDS
            self._print(self._status())

    def _once(self, key: str, line: str) -> None:
        if self._seen.get(key) != line:
            self._seen[key] = line
            self._print(line)

    def _status(self) -> str:
        facts = self._facts
        scored = sum(
            c.risk is not None and c.risk.risk_240m is not None for c in facts.cards.values()
        )
        text = (
            f"{view.clock(self._stage.sim_seconds)} of "
            f"{view.clock(self._stage.duration_seconds)}: {scored} of {len(facts.cards)} "
            "cards scored"
        )
        for card in facts.riskiest(1):
            if card.risk is not None and card.risk.risk_240m is not None:
                text += f", highest risk {card.risk.risk_240m * 100:.1f} % ({card.device})"
        if facts.job is not None:
            loss = facts.job["loss"]
            text += f"; job step {facts.job['step'] or 0}"
            text += f" loss {loss:.3f}" if loss is not None else ""
        return text

    def close(self) -> None:
        self._news()


def update_step(stage: view.Stage, name: str, state: State, detail: str) -> view.Step:
    """Note a part's new state in the list of the start."""
    step = stage.step(name)
    now = time.monotonic()
    if state == "starting":
        step.began, step.ended = now, None
    elif state == "ready":
        step.ended = now
    step.state, step.detail = state, detail
    return step


def choose(facts: Facts, stage: view.Stage, *, plain: bool, print_line: PrintLine) -> Display:
    """The screen where there is a terminal and nobody asked for lines."""
    if plain or not sys.stdout.isatty():
        return Lines(facts, stage, print_line)
    return Screen(facts, stage)
