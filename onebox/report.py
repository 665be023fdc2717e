"""The demo's report: what happened, as numbers (contracts section 5) and as a few lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onebox.facts import Facts, losses, rfc3339, unix_seconds
from simulator.story import Failure, Story

LOSS_POINTS: Final = 10
"""A loss of the report is the mean of this many reported steps: single batches are noisy."""

JUDGED_STEPS: Final = 50
"""Fewer steps after a move say nothing about the loss."""


@dataclass(frozen=True)
class Run:
    """When the run took place. Times are Unix seconds.

    ``sim_start`` is event time at the story's beginning; ``ready_wall`` the wall time at which
    everything was up and that beginning was played; ``end_wall`` when the demo ended.
    """

    sim_start: float
    speed: float
    began_wall: float
    ready_wall: float
    end_wall: float
    problems: tuple[str, ...] = ()

    def sim_seconds(self, story: Story) -> float:
        """How much of the story was played."""
        played = max(self.end_wall - self.ready_wall, 0.0) * self.speed
        return min(played, story.duration_seconds)

    def event_time(self, wall: str | None) -> str | None:
        """A wall time of the runner on the story's clock, which failures and decisions use."""
        if wall is None:
            return None
        return rfc3339(self.sim_start + (unix_seconds(wall) - self.ready_wall) * self.speed)


def build(story: Story, facts: Facts, run: Run) -> dict[str, Any]:
    """``report.json``. ``job`` is null when there was none."""
    moves = [m for m in facts.moves() if m["completed_at"] is not None]
    first = unix_seconds(moves[0]["completed_at"]) - run.ready_wall if moves else None
    return {
        "rigs": len(story.nodes),
        "cards": len(story.devices),
        "simulated_seconds": round(run.sim_seconds(story), 1),
        "wall_seconds": round(run.end_wall - run.began_wall, 1),
        "first_migration_wall_seconds": None if first is None else round(first, 1),
        "failures": [_failure(f, facts, run) for f in played_failures(story, run)],
        "migrations": [_migration(m, run) for m in _by_time(facts.migrations)],
        "false_migrations": len(false_migrations(story, facts)),
        "job": _job(facts),
    }


def played_failures(story: Story, run: Run) -> list[Failure]:
    """The failures that came to pass before the demo ended, in order."""
    played = run.sim_seconds(story)
    failures = sorted(story.failures, key=lambda f: f.failed_at_seconds)
    return [f for f in failures if f.failed_at_seconds <= played]


def false_migrations(story: Story, facts: Facts) -> list[Mapping[str, Any]]:
    """Migrations off cards to which nothing happens in the story, or off rigs with such cards."""
    sick = {f.device for f in story.failures}
    sick_rigs = {
        node
        for node in story.nodes
        if sick.issuperset(d.device for d in story.devices if d.node == node)
    }

    def is_false(migration: Mapping[str, Any]) -> bool:
        if migration["device"] is None:
            return str(migration["node"]).rpartition("/")[2] not in sick_rigs
        return migration["device"] not in sick

    return [m for m in facts.migrations if is_false(m)]


def _failure(failure: Failure, facts: Facts, run: Run) -> dict[str, Any]:
    request = facts.request_for(failure.device)
    return {
        "device": failure.device,
        "kind": failure.kind,
        "failed_at": rfc3339(run.sim_start + failure.failed_at_seconds),
        "decided_at": None if request is None else rfc3339(request.at),
        "cause": None if request is None else request.cause,
    }


def _by_time(migrations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(migrations, key=lambda m: str(m["requested_at"]))


def _migration(migration: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Its times are on the story's clock, like those of failures and decisions."""
    return {
        **{key: migration[key] for key in ("device", "episode_id")},
        "requested_at": run.event_time(migration["requested_at"]),
        "completed_at": run.event_time(migration["completed_at"]),
        "job": migration["job"],
        "from": _place(migration["from"]),
        "to": _place(migration["to"]),
    }


def _place(place: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if place is None else {"node": place["node"], "device": place["device"]}


def _where(place: Mapping[str, Any] | None) -> str:
    if place is None:
        return "nowhere"
    return str(place["node"]) + (f"/{place['device']}" if place["device"] else "")


def _job(facts: Facts) -> dict[str, Any] | None:
    if facts.job is None:
        return None
    points = losses(facts.progress)
    generations = sorted({p[3] for p in points})
    before = [p[2] for p in points if generations and p[3] == generations[0]]
    after = [p[2] for p in points if len(generations) > 1 and p[3] == generations[1]]
    every = [p[2] for p in points]
    return {
        "steps": facts.job.get("step"),
        "loss_first": _mean(every[:LOSS_POINTS]),
        "loss_before_move": _mean(before[-LOSS_POINTS:]) if after else None,
        "loss_after_move": _mean(after[:LOSS_POINTS]),
        "loss_last": _mean(every[-LOSS_POINTS:]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 5) if values else None


def failings(story: Story, facts: Facts, run: Run) -> list[str]:
    """Why the story did not hold; empty when it did."""
    wrong = list(run.problems)
    first = min(story.failures, key=lambda f: f.failed_at_seconds, default=None)
    if first is None:
        return [*wrong, "the story has no failure"]
    moved = [m for m in facts.moves() if m["device"] == first.device]
    completed = [m for m in moved if m["state"] == "completed"]
    if not completed:
        reached = run.sim_seconds(story) / 60
        wrong.append(
            f"the job was not moved off {first.device}: the migration "
            + (
                f"ended as {moved[0]['state']} ({moved[0]['error'] or 'no error given'})"
                if moved
                else f"was not requested by simulated minute {reached:.0f} "
                f"(the card fails at minute {first.failed_at_seconds / 60:.0f})"
            )
        )
    if facts.job is None:
        wrong.append("there is no training job")
    elif facts.job["state"] not in {"running", "completed"}:
        why = facts.job.get("error") or "no error given"
        wrong.append(f"the job is {facts.job['state']}: {why}")
    elif completed:
        wrong += _job_failings(facts)
    return wrong


def _job_failings(facts: Facts) -> list[str]:
    """Whether the job went on after its move, and its loss went on falling."""
    points = losses(facts.progress)
    first = min((p[3] for p in points), default=0)
    before = [p for p in points if p[3] == first]
    after = [p for p in points if p[3] != first]
    if not after or not before:
        return ["the job reported no step after its move"]
    went_on = after[-1][1] - before[-1][1]
    if went_on < JUDGED_STEPS:
        return [f"the job had made {went_on} steps more than before its move: too few to judge"]
    then = _mean([p[2] for p in before[-LOSS_POINTS:]])
    now = _mean([p[2] for p in after[-LOSS_POINTS:]])
    if then is not None and now is not None and not now < then:
        return [f"the loss did not fall after the move: {then} before, {now} at last"]
    return []


def summary(report: Mapping[str, Any], wrong: Sequence[str]) -> list[str]:
    """The short report for a person, one line a fact."""
    lines = [
        f"{report['rigs']} rigs, {report['cards']} cards; "
        f"{report['simulated_seconds'] / 60:.0f} simulated minutes in "
        f"{report['wall_seconds']:.0f} s"
    ]
    for failure in report["failures"]:
        lines.append(f"  {failure['device']} failed ({failure['kind']}): {_warning(failure)}")
    for migration in report["migrations"]:
        if migration["job"] is None:
            continue
        took = ""
        if migration["completed_at"] is not None:
            asked = unix_seconds(migration["requested_at"])
            minutes = (unix_seconds(migration["completed_at"]) - asked) / 60
            took = f" in {minutes:.0f} simulated minutes"
        lines.append(
            f"  job moved from {_where(migration['from'])} to {_where(migration['to'])}{took}"
        )
    if report["first_migration_wall_seconds"] is not None:
        lines.append(
            f"  first migration {report['first_migration_wall_seconds']:.0f} s after everything "
            f"was up; {report['false_migrations']} moves of healthy cards"
        )
    job = report["job"]
    if job is not None and job["loss_first"] is not None:
        path = [
            job["loss_first"],
            job["loss_before_move"],
            job["loss_after_move"],
            job["loss_last"],
        ]
        shown = " → ".join(f"{loss:.3f}" for loss in path if loss is not None)
        what = "first, before and after the move, last" if path[1] is not None else "first, last"
        lines.append(f"  loss {shown} ({what}) over {job['steps']} steps")
    lines += [f"  NOT AS IT SHOULD BE: {reason}" for reason in wrong]
    return lines


def _warning(failure: Mapping[str, Any]) -> str:
    if failure["decided_at"] is None:
        return "no warning"
    lead = unix_seconds(failure["failed_at"]) - unix_seconds(failure["decided_at"])
    minutes = round(abs(lead) / 60)
    when = "as it failed" if minutes == 0 else f"{minutes} min {'before' if lead > 0 else 'after'}"
    return f"decided {when} ({failure['cause']})"
