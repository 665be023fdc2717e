"""The demo's report as one HTML page that needs nothing beside it; plots are inline SVG."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from onebox import report
from onebox.facts import Card, Facts, losses, unix_seconds
from simulator.story import Failure, Story

_INK, _RISK, _DECIDED, _FAILED = "#1f2937", "#2563eb", "#c026d3", "#dc2626"
_JOB: Final = ("#0f766e", "#d97706", "#7c3aed", "#be123c")

_PANELS: Final = (
    ("temperature, °C", ("temperature_celsius_mean", "memory_temperature_celsius_mean")),
    ("12 V ripple, mV", ("vrm_ripple_volts_mean",)),
    ("fan, rpm", ("fan_speed_rpm_mean",)),
    ("fan vibration, g", ("fan_vibration_g_mean",)),
    ("board power, W", ("power_watts_mean",)),
    ("ECC errors a minute", ("ecc_corrected_total_increase", "ecc_uncorrected_total_increase")),
)
_SCALE: Final = {"vrm_ripple_volts_mean": 1000.0}

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;color:#1f2937;max-width:60rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.tiles{display:flex;flex-wrap:wrap;gap:1rem;margin:1.2rem 0}
.tile{border:1px solid #d1d5db;border-radius:.5rem;padding:.6rem 1rem;min-width:8rem}
.tile b{display:block;font-size:1.5rem}.ok{color:#15803d}.bad{color:#b91c1c}
table{border-collapse:collapse;width:100%;font-size:.92rem}
td,th{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #e5e7eb}
.wide{overflow-x:auto}
svg{max-width:100%;height:auto}p.note{color:#4b5563;font-size:.9rem}
"""


def write_html(
    path: Path,
    story: Story,
    facts: Facts,
    run: report.Run,
    numbers: Mapping[str, Any],
    wrong: Sequence[str],
) -> None:
    """Write the page. ``numbers`` is ``report.json``, ``wrong`` why the story did not hold."""
    failures = report.played_failures(story, run)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>rigcanary demo</title><style>{_STYLE}</style>",
        "<h1>rigcanary demo</h1>",
        _verdict(numbers, wrong),
        _tiles(numbers),
        "<h2>What failed, and what was decided</h2>",
        _failures_table(numbers, run),
        "<h2>Migrations</h2>",
        _migrations_table(facts),
    ]
    for failure in failures:
        card = facts.cards[failure.device]
        parts += [
            f"<h2>{_text(failure.node)}/{_text(failure.device)}: {_text(failure.kind)}</h2>",
            _card_figure(card, failure, facts, run),
            _evidence(facts, failure.device),
        ]
    if facts.progress:
        parts += ["<h2>The training job across the move</h2>", _job_figure(facts, run)]
    parts.append(
        f"<p class=note>Seed {story.seed}, {run.speed:g} simulated seconds a second; model "
        f"{_text(facts.model_version)}. Cards and failures are simulated; brokers, stream, model, "
        "webhook, runner and training job are real processes.</p></html>"
    )
    path.write_text("\n".join(parts), encoding="utf-8")


def _text(value: object) -> str:
    return html.escape(str(value))


def _verdict(numbers: Mapping[str, Any], wrong: Sequence[str]) -> str:
    if wrong:
        return "".join(f"<p class=bad>Not as it should be: {_text(why)}</p>" for why in wrong)
    in_time = numbers["failures"] and _lead_minutes(numbers["failures"][0]) > 0
    if in_time:
        return "<p class=ok>The job was moved off the failing card in time and went on.</p>"
    return "<p>The job was moved once its card had failed, and went on from its checkpoint.</p>"


def _tiles(numbers: Mapping[str, Any]) -> str:
    first = numbers["first_migration_wall_seconds"]
    warned = sum(_lead_minutes(f) > 0 for f in numbers["failures"])
    tiles = [
        (numbers["cards"], f"cards in {numbers['rigs']} rigs"),
        (f"{numbers['simulated_seconds'] / 60:.0f} min", "of simulated time"),
        (f"{warned} of {len(numbers['failures'])}", "failures decided before they came"),
        (numbers["false_migrations"], "moves of healthy cards"),
        ("–" if first is None else f"{first:.0f} s", "from start to the first migration"),
    ]
    inner = "".join(
        f"<div class=tile><b>{_text(value)}</b>{_text(what)}</div>" for value, what in tiles
    )
    return f"<div class=tiles>{inner}</div>"


def _lead_minutes(failure: Mapping[str, Any]) -> float:
    if failure["decided_at"] is None:
        return 0.0
    return (unix_seconds(failure["failed_at"]) - unix_seconds(failure["decided_at"])) / 60


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p class=note>None.</p>"
    lines = [f"<tr>{''.join(f'<th>{_text(h)}</th>' for h in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{_text(c)}</td>' for c in row)}</tr>" for row in rows]
    return f"<div class=wide><table>{''.join(lines)}</table></div>"


def _failures_table(numbers: Mapping[str, Any], run: report.Run) -> str:
    rows = []
    for failure in numbers["failures"]:
        at = (unix_seconds(failure["failed_at"]) - run.sim_start) / 60
        lead = _lead_minutes(failure)
        warning = "not at all" if failure["decided_at"] is None else f"{max(lead, 0):.0f} min"
        rows.append(
            (
                failure["device"],
                failure["kind"],
                f"minute {at:.0f}",
                warning,
                failure["cause"] or "–",
            )
        )
    return _table(("card", "what failed", "when", "decided before", "cause"), rows)


def _migrations_table(facts: Facts) -> str:
    rows = []
    for m in sorted(facts.migrations, key=lambda m: str(m["requested_at"])):
        took = str(m["state"])
        if m["job"] is not None and m["completed_at"] is not None:
            took = f"{unix_seconds(m['completed_at']) - unix_seconds(m['requested_at']):.1f} s"
        place = "–" if m["to"] is None else f"{m['to']['node']}/{m['to']['device']}"
        what = f"{m['node']}/{m['device']}" if m["device"] else f"{m['node']}, the whole rig"
        rows.append((what, m["cause"], m["job"] or "none there", place, took))
    return _table(("off", "cause", "job", "to", "took"), rows)


def _evidence(facts: Facts, device: str) -> str:
    request = facts.request_for(device)
    if request is None or not any(e.get("value") is not None for e in request.evidence):
        return ""
    rows = [
        (
            e["sensor"],
            _number(e.get("value")),
            _number(e.get("baseline")),
            f"{100 * float(e.get('contribution') or 0):.0f} %",
        )
        for e in request.evidence
    ]
    return "<p class=note>What the decision rested on:</p>" + _table(
        ("sensor", "value", "usual", "share"), rows
    )


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def _card_figure(card: Card, failure: Failure, facts: Facts, run: report.Run) -> str:
    """Telemetry of the card above its risk, over simulated minutes, with the marks."""
    panels = [
        (label, columns)
        for label, columns in _PANELS
        if any(row.get(c) is not None for row in card.minutes.values() for c in columns)
    ]
    figure, axes = _figure(len(panels) + 1, 1.15)
    request = facts.request_for(card.device)
    for ax, (label, columns) in zip(axes, panels, strict=False):
        for column, colour in zip(columns, (_INK, "#9ca3af"), strict=False):
            points = [
                ((at - run.sim_start) / 60, value * _SCALE.get(column, 1.0))
                for at, row in sorted(card.minutes.items())
                if (value := row.get(column)) is not None
            ]
            if points:
                ax.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    linewidth=1.1,
                    label="memory" if column.startswith("memory") else None,
                )
        ax.set_title(label, fontsize=9, loc="left", pad=2)
    _plot_risk(axes[-1], card, facts, run)
    for ax in axes:
        if request is not None:
            ax.axvline((request.at - run.sim_start) / 60, color=_DECIDED, linewidth=1.2)
        ax.axvline(failure.failed_at_seconds / 60, color=_FAILED, linewidth=1.2, linestyle="--")
    axes[-1].set_xlabel("simulated minute; purple: the decision, red dashes: the failure")
    return _svg(figure)


def _plot_risk(ax: Axes, card: Card, facts: Facts, run: report.Run) -> None:
    for horizon, colour in (("risk_15m", "#cbd5e1"), ("risk_60m", "#93c5fd"), ("risk_240m", _RISK)):
        points = [
            ((at - run.sim_start) / 60, value)
            for at, risk in sorted(card.risks.items())
            if (value := getattr(risk, horizon)) is not None
        ]
        if points:
            ax.plot(
                *zip(*points, strict=True),
                color=colour,
                linewidth=1.3,
                label=f"within {horizon[5:-1]} min",
            )
    if facts.threshold is not None:
        ax.axhline(
            facts.threshold,
            color="#6b7280",
            linewidth=0.8,
            linestyle=":",
            label="threshold (240 min)",
        )
    ax.set_ylim(-0.02, 1.02)
    ax.set_title("risk of failure", fontsize=9, loc="left", pad=2)
    if ax.lines:
        ax.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)


def _job_figure(facts: Facts, run: report.Run) -> str:
    """Loss over wall seconds, one colour for each card the job ran on."""
    figure, (ax,) = _figure(1, 2.6)
    points = losses(facts.progress)
    places = {int(p["generation"]): f"{p.get('node')}/{p.get('device')}" for p in facts.progress}
    for number, generation in enumerate(sorted({p[3] for p in points})):
        own = [(at - run.ready_wall, loss) for at, _, loss, g in points if g == generation]
        ax.plot(
            *zip(*own, strict=True),
            color=_JOB[number % len(_JOB)],
            linewidth=1.0,
            label=f"on {places.get(generation, '?')}",
        )
    for move in facts.moves():
        for key, style in (("requested_at", "-"), ("completed_at", ":")):
            if move[key] is not None:
                ax.axvline(
                    unix_seconds(move[key]) - run.ready_wall,
                    color=_DECIDED,
                    linewidth=1.1,
                    linestyle=style,
                )
    ax.set_title("training loss", fontsize=9, loc="left", pad=2)
    ax.set_xlabel("wall seconds since everything was up; purple: migration asked for, and done")
    if ax.lines:
        ax.legend(fontsize=8, frameon=False, loc="upper right")
    return _svg(figure)


def _figure(rows: int, inches_each: float) -> tuple[Figure, list[Axes]]:
    # Not pyplot: it keeps figures and picks a window system.
    figure = Figure(figsize=(9, 0.6 + inches_each * rows), layout="constrained")
    axes = [figure.add_subplot(rows, 1, n + 1) for n in range(rows)]
    for n, ax in enumerate(axes):
        if n:
            ax.sharex(axes[0])
        ax.tick_params(labelsize=8, labelbottom=n == rows - 1)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(visible=True, alpha=0.25, linewidth=0.5)
    return figure, axes


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    FigureCanvasSVG(figure)
    # Text stays text (small, selectable); a fixed salt makes the ids the same in every run.
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "rigcanary", "font.family": "sans-serif"}
    ):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
