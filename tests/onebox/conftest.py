"""A real embedded Kafka broker on a free port, and a demo that was played on paper."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from onebox import ports
from onebox.brokers import EmbeddedKafka, create_topics
from onebox.facts import Facts, rfc3339
from onebox.processes import Supervisor
from onebox.report import Run
from simulator.story import Story, demo_story

SIM_START = 1_767_225_600.0
READY = 1_767_240_000.0


@dataclass
class KafkaFixture:
    """A broker that a test may restart, which empties it."""

    supervisor: Supervisor
    broker: EmbeddedKafka

    @property
    def address(self) -> str:
        return self.broker.address

    async def restart(self) -> None:
        await self.supervisor.stop(["kafka"])
        await self.supervisor.start(self.broker.spec())

    async def create(self, *names: str, partitions: int = 2) -> None:
        await create_topics(self.address, dict.fromkeys(names, partitions))


@pytest_asyncio.fixture
async def kafka(tmp_path: Path) -> AsyncIterator[KafkaFixture]:
    broker = EmbeddedKafka(ports.free_port(set()))
    async with Supervisor(tmp_path / "log") as supervisor:
        await supervisor.start(broker.spec())
        yield KafkaFixture(supervisor, broker)


@dataclass
class Played:
    """The records of a demo in which all went well, made by hand."""

    story: Story
    facts: Facts
    run: Run


def minute_record(story: Story, node: str, minute: int, lost: frozenset[str]) -> dict:
    devices = []
    for card in story.devices:
        if card.node != node:
            continue
        row = {
            "device": card.device,
            "index": card.index,
            "samples_ok": 12,
            "samples_lost": 0,
            "temperature_celsius_mean": 60 + 0.1 * minute,
            "vrm_ripple_volts_mean": 0.04,
            "fan_speed_rpm_mean": None,
        }
        if card.device in lost:
            row |= {"samples_ok": 0, "samples_lost": 12, "temperature_celsius_mean": None}
        devices.append(row)
    at = int(SIM_START) + 60 * minute
    return {
        "schema": "rigcanary.minutes/1",
        "site": "demo",
        "node": node,
        "minute": at,
        "devices": devices,
    }


def risks_record(story: Story, node: str, minute: int, risk_of: dict[str, float]) -> dict:
    rows = []
    for card in story.devices:
        if card.node == node:
            scored = minute >= 30
            risk = risk_of.get(card.device, 0.01) if scored else None
            rows.append(
                {
                    "device": card.device,
                    "status": "scored" if scored else "not enough data",
                    "completeness": min(minute / 60, 1.0),
                    "risk_15m": risk,
                    "risk_60m": risk,
                    "risk_240m": risk,
                    "health_score": None if risk is None else 100 * (1 - risk),
                }
            )
    at = int(SIM_START) + 60 * minute
    return {
        "schema": "rigcanary.risks/1",
        "site": "demo",
        "node": node,
        "minute": at,
        "model_version": "test-1",
        "threshold": 0.5,
        "devices": rows,
    }


def request_record(device: str, node: str, minute: float, cause: str = "predicted") -> dict:
    at = rfc3339(SIM_START + 60 * minute)
    return {
        "schema": "rigcanary.decision/1",
        "decision_id": f"dec-{device}",
        "dry_run": False,
        "type": "migration.requested",
        "data": {
            "site": "demo",
            "node": node,
            "device": device,
            "episode_id": f"ep-{device}",
            "decision_id": f"dec-{device}",
            "cause": cause,
            "risk": 0.9,
            "health_score": 8.0,
            "decided_at": at,
            "observed_at": at,
            "evidence": [
                {"sensor": "vrm_ripple_volts", "value": 0.12, "baseline": 0.03, "contribution": 0.7}
            ],
        },
    }


def migration_answer(device: str, node: str, at: float, job: str | None = "job-1") -> dict:
    place = {"rank": 0, "node": node, "device": device}
    return {
        "id": f"mig-{device}",
        "episode_id": f"ep-{device}",
        "device": device,
        "node": node,
        "cause": "predicted",
        "source": "webhook",
        "state": "completed",
        "job": job,
        "from": place if job else None,
        "steps": [],
        "error": None,
        "to": {"rank": 0, "node": "rig002", "device": "GPU-new"} if job else None,
        "requested_at": rfc3339(READY + at),
        "completed_at": rfc3339(READY + at + 4.5),
    }


@pytest.fixture
def played() -> Played:
    story = demo_story(rigs=4, cards=2, seed=7)
    facts = Facts.of((d.device, d.node, d.index) for d in story.devices)
    first = story.failures[0]
    for minute in range(180):
        lost = frozenset(f.device for f in story.failures if f.failed_at_seconds < 60 * minute)
        risk_of = {
            f.device: min(max((minute - f.ramp_seconds / 60) / 60, 0.01), 0.97)
            for f in story.failures
        }
        for node in story.nodes:
            facts.on_minute(minute_record(story, node, minute, lost))
            facts.on_risks(risks_record(story, node, minute, risk_of))
    facts.on_decision(request_record(first.device, first.node, 110))
    facts.migrations = [migration_answer(first.device, first.node, 110.0)]
    facts.job = {
        "id": "job-1",
        "state": "running",
        "node": "rig002",
        "device": "GPU-new",
        "step": 900,
        "loss": 1.5,
        "error": None,
    }
    facts.progress = [
        {
            "at": rfc3339(READY + s / 5),
            "step": s,
            "loss": 4.0 - s / 400,
            "node": first.node,
            "device": first.device,
            "generation": 1 if s < 550 else 2,
        }
        for s in range(0, 901, 5)
    ]
    run = Run(
        sim_start=SIM_START,
        speed=60.0,
        began_wall=READY - 30,
        ready_wall=READY,
        end_wall=READY + 180,
    )
    return Played(story, facts, run)
