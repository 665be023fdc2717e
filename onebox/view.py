"""The demo's live view in the terminal: pure functions from what is known to what is shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.align import Align
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from onebox.facts import UNHEALTHY_SCORE, Card, Decision, Facts, losses

_WATCH_SCORE: Final = 85.0
"""Health scores under this are worth a look, in the view only."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_CELL: Final = 4


@dataclass
class Step:
    """One step of the start, as the list of the start shows it."""

    name: str
    state: str = "waiting"
    detail: str = ""
    began: float | None = None
    ended: float | None = None

    def seconds(self, now: float) -> float | None:
        """How long it has taken so far."""
        return None if self.began is None else (self.ended or now) - self.began


@dataclass
class Stage:
    """What the view shows beside the facts. ``sim_seconds`` counts from the story's start."""

    title: str
    steps: list[Step] = field(default_factory=list)
    nodes: Sequence[str] = ()
    cards_per_node: int = 0
    speed: float = 1.0
    duration_seconds: float = 0.0
    sim_start: float = 0.0
    sim_seconds: float | None = None
    web_url: str = ""
    notice: str = ""

    def step(self, name: str) -> Step:
        """The step of that name, new if it was not there."""
        found = next((s for s in self.steps if s.name == name), None)
        if found is None:
            found = Step(name)
            self.steps.append(found)
        return found


def clock(seconds: float | None) -> str:
    """Simulated time as ``h:mm``."""
    if seconds is None:
        return "–:––"
    minutes = int(max(seconds, 0) // 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def sparkline(
    values: Sequence[float], width: int, limits: tuple[float, float] | None = None
) -> str:
    """Values as a row of ``width`` bars, each the mean of its share.

    The lowest and the highest bar stand for ``limits``, or else for the lowest and highest mean.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    means = []
    for i in range(count):
        part = values[i * len(values) // count : (i + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = limits or (min(means), max(means))
    span = (high - low) or 1.0
    top = len(_BARS) - 1
    return "".join(_BARS[min(max(round((m - low) / span * top), 0), top)] for m in means)


def cell(card: Card, *, leaving: bool, working: bool) -> Text:
    """One card of the grid: its health score, coloured; ``▸`` marks the card of the job."""
    mark = "▸" if working else " "
    risk = card.risk
    if card.state in {"lost", "unresponsive"}:
        return Text(f"{mark}{'✗':>2} ", style="bold white on red")
    if card.state is None:
        return Text(f"{mark} · ", style="bright_black")
    if risk is None or risk.health_score is None:
        return Text(f"{mark}{'▪':>2} ", style="bright_black")
    score = risk.health_score
    text = f"{mark}{min(round(score), 99):>2} "
    if leaving:
        return Text(text, style="bold white on magenta")
    if score < UNHEALTHY_SCORE:
        return Text(text, style="bold white on red")
    return Text(text, style="yellow" if score < _WATCH_SCORE else "green")


def grid(facts: Facts, stage: Stage, rows: int) -> RenderableType:
    """Rigs down, cards across; with too many rigs for ``rows`` the least healthy are shown."""
    by_node: dict[str, list[Card]] = {node: [] for node in stage.nodes}
    for card in facts.cards.values():
        by_node[card.node].append(card)
    leaving = facts.asked_to_leave()
    working = facts.job.get("device") if facts.job else None
    shown = list(stage.nodes)
    if len(shown) > rows:
        worst = sorted(shown, key=lambda n: min(_health(c) for c in by_node[n]))[: rows - 1]
        shown = [n for n in shown if n in worst]
    table = Table.grid(padding=0)
    for node in shown:
        cards = sorted(by_node[node], key=lambda c: c.index)
        table.add_row(
            Text(f"{node[:8]} ", style="bold" if any(c.device == working for c in cards) else ""),
            *(cell(c, leaving=c.device in leaving, working=c.device == working) for c in cards),
        )
    hidden = len(stage.nodes) - len(shown)
    legend = Text(style="bright_black")
    if hidden:
        legend.append(f"… {hidden} more rigs, healthier\n")
    legend.append("health ").append(f"≥{_WATCH_SCORE:.0f}", "green").append(" lower ", "yellow")
    legend.append(f"<{UNHEALTHY_SCORE:.0f}", "bold white on red").append(" ")
    legend.append("leave", "bold white on magenta").append("\n✗ lost  ▪ little data  ▸ job")
    return Group(table, legend)


def _health(card: Card) -> float:
    if card.state in {"lost", "unresponsive"}:
        return -1.0
    if card.risk is None or card.risk.health_score is None:
        return 100.0
    return card.risk.health_score


def top_risks(facts: Facts, count: int) -> RenderableType:
    """The riskiest cards with the course of their risk."""
    table = Table.grid(padding=(0, 1))
    for card in facts.riskiest(count):
        newest = card.risk
        if newest is None or newest.risk_240m is None:
            continue
        course = [
            r.risk_240m for _, r in sorted(card.risks.items())[-60:] if r.risk_240m is not None
        ]
        style = "bold red" if (newest.health_score or 100.0) < UNHEALTHY_SCORE else ""
        table.add_row(
            Text(f"{card.node}/{card.device}"),
            Text(f"{newest.risk_240m * 100:5.1f} %", style),
            Text(sparkline(course, 14, (0.0, 1.0)), "cyan"),
        )
    return table if table.rows else Text("no window is long enough yet", style="bright_black")


def describe(decision: Decision, sim_start: float) -> str:
    """A decision in one line."""
    when = clock(decision.at - sim_start)
    what = f"{decision.node}/{decision.device}" if decision.device else decision.node
    if decision.type == "migration.requested":
        text = f"{when} leave {what}: {decision.cause}"
        if decision.cause == "predicted" and decision.risk is not None:
            text += f", risk {decision.risk * 100:.0f} %"
        if decision.evidence:
            text += f" ({decision.evidence[0]['sensor']})"
    else:
        text = f"{when} {decision.type} {what}"
    return text + (" (dry run)" if decision.dry_run else "")


def decisions(facts: Facts, stage: Stage, count: int) -> RenderableType:
    """The newest decisions and the moves of the job."""
    newest = sorted(facts.decisions.values(), key=lambda d: (d.at, d.decision_id))[-count:]
    lines = [Text(describe(d, stage.sim_start), overflow="ellipsis", no_wrap=True) for d in newest]
    if not lines:
        return Text("none yet", style="bright_black")
    return Group(*lines)


def job(facts: Facts, width: int) -> RenderableType:
    """The training job: where it runs, its step, its loss, its moves."""
    if facts.job is None:
        return Text("not started yet", style="bright_black")
    where = f"{facts.job['node']}/{facts.job['device']}" if facts.job["node"] else "no place yet"
    points = losses(facts.progress)
    loss = facts.job["loss"]
    line = Text.assemble(
        (where, "bold"),
        f"  {facts.job['state']}  step {facts.job['step'] or 0}",
        f"  loss {loss:.3f}" if loss is not None else "",
    )
    rows: list[RenderableType] = [line, Text(sparkline([p[2] for p in points], width), "green")]
    for move in facts.moves()[-3:]:
        target = f"{move['to']['node']}/{move['to']['device']}" if move["to"] else "…"
        left = f"{move['from']['node']}/{move['from']['device']}" if move["from"] else "?"
        done = move["state"] == "completed"
        rows.append(
            Text(
                f"{'✓' if done else '…'} {left} → {target}: {move['state']}",
                "bold green" if done else "bold yellow",
            )
        )
    return Group(*rows)


def starting(stage: Stage, now: float) -> RenderableType:
    """The list of the start."""
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column()
    table.add_column(min_width=7, justify="right")
    table.add_column()
    marks = {
        "waiting": ("·", "bright_black"),
        "starting": ("…", "yellow"),
        "ready": ("✓", "green"),
        "failed": ("✗", "bold red"),
    }
    for step in stage.steps:
        mark, style = marks.get(step.state, ("·", "bright_black"))
        seconds = step.seconds(now)
        table.add_row(
            Text(mark, style),
            step.name,
            "" if seconds is None else f"{seconds:.1f} s",
            Text(step.detail, "bright_black"),
        )
    return table


def screen(facts: Facts, stage: Stage, width: int, height: int, now: float) -> RenderableType:
    """The whole screen. ``now`` is of the clock that the steps were timed by, in seconds."""
    head = Text.assemble(
        (stage.title, "bold"), f"   {_time(stage)}", (f"   {stage.notice}", "yellow")
    )
    if stage.sim_seconds is None:
        body = Panel(Align.left(starting(stage, now)), title="starting", title_align="left")
        return Group(head, body)
    layout = Layout()
    left = max(min(13 + _CELL * stage.cards_per_node, width // 2), 30)
    right = width - left - 4
    layout.split_column(Layout(head, size=1, name="head"), Layout(name="body"))
    layout["body"].split_row(
        Layout(
            Panel(
                grid(facts, stage, max(height - 5, 4)),
                title="rigs × cards: health",
                title_align="left",
            ),
            size=left,
        ),
        Layout(name="right"),
    )
    free = max(height - 1 - 8, 8)
    risks = max(min(free // 2 - 2, 6), 2)
    layout["right"].split_column(
        Layout(
            Panel(
                top_risks(facts, risks), title="risk of failure within 240 min", title_align="left"
            ),
            size=risks + 2,
        ),
        Layout(
            Panel(
                decisions(facts, stage, max(free - risks - 4, 3)),
                title="decisions",
                title_align="left",
            )
        ),
        Layout(Panel(job(facts, max(right, 10)), title="training job", title_align="left"), size=8),
    )
    return layout


def _time(stage: Stage) -> str:
    if stage.sim_seconds is None:
        return ""
    if stage.sim_seconds < 0:
        return f"the rigs begin in {-stage.sim_seconds / stage.speed:.0f} s"
    return (
        f"simulated {clock(stage.sim_seconds)} of {clock(stage.duration_seconds)} "
        f"({stage.speed:g}×)   {stage.web_url}"
    )
