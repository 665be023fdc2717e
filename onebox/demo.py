"""``rigcanary demo``: simulated rigs, the real server side, and one training job that is moved."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from contract.errors import RigcanaryError
from onebox import display, folders, report, toml, view
from onebox.box import OneBox
from onebox.child import ChildSpec, rigcanary_argv
from onebox.facts import Facts
from onebox.parts import BoxSettings, Ports, choose_ports
from onebox.ports import HOST
from onebox.processes import State, Supervisor
from onebox.settings import DemoSettings
from onebox.signals import Interrupts
from onebox.tasks import beside
from onebox.watchers import KafkaWatcher, RunnerClient
from simulator.story import Story, demo_story

log = logging.getLogger(__name__)

SITE: Final = "demo"
_HEAD_START_SECONDS: Final = 6.0
"""From the start of the first agent to the story's beginning …"""
_HEAD_START_PER_RIG: Final = 0.3
"""… and so much more for each: a Python process takes that long to start on a busy core."""
_AFTER_STORY_SECONDS: Final = 5.0
_CATCH_UP_SECONDS: Final = 60.0
_OPEN_MINUTES: Final = 4
"""The last minutes stay open until a watermark or the wall closes them: no reason to wait."""
_KAFKA_MEMORY_BYTES: Final = 1536 * 1024 * 1024
"""The whole demo takes about a third of it; nothing is to be started afresh meanwhile."""


def run(settings: DemoSettings, print_line: Callable[[str], None]) -> int:
    """Play the demo and report; returns the exit code: 0 when the story held, 1 when not.

    Raises:
        ConfigError: a port is taken, or a folder cannot be used.
        RigcanaryError: a part did not come up.
    """
    return asyncio.run(_run(settings, print_line))


async def _run(settings: DemoSettings, print_line: Callable[[str], None]) -> int:
    began = time.time()
    story = demo_story(settings.rigs, settings.cards, settings.seed, SITE)
    chosen = choose_ports(
        mqtt=settings.mqtt_port,
        kafka=settings.kafka_port,
        runner=settings.runner_port,
        web=settings.web_port,
    )
    folders.check_report_folder(settings.report)
    facts = Facts.of((d.device, d.node, d.index) for d in story.devices)
    stage = view.Stage(
        title=f"rigcanary demo: {len(story.nodes)} rigs, {len(story.devices)} cards",
        nodes=story.nodes,
        cards_per_node=settings.cards,
        speed=settings.speed,
        duration_seconds=story.duration_seconds,
    )
    played: report.Run | None = None
    with folders.state_folder(settings.state, print_line) as state, folders.log_file(state):
        shown = display.choose(facts, stage, plain=settings.plain, print_line=print_line)
        supervisor = Supervisor(state / "log", observer=_Observer(shown))
        with Interrupts(supervisor.kill) as interrupts:
            try:
                async with supervisor:
                    demo = Demo(settings, story, facts, stage, shown, supervisor, state, chosen)
                    played = await demo.play(began)
            except asyncio.CancelledError:
                if interrupts.received is None:
                    raise
            finally:
                shown.close()
        if played is None:
            print_line("interrupted; every process was ended")
            return 130
        wrong = _conclude(story, facts, played, settings, print_line)
        if wrong and settings.state is None:
            print_line(f"logs kept in {folders.keep(state)}")
        return 1 if wrong else 0


def _conclude(
    story: Story,
    facts: Facts,
    played: report.Run,
    settings: DemoSettings,
    print_line: Callable[[str], None],
) -> list[str]:
    """Print and write the report; returns what is wrong with the story, if anything."""
    numbers = report.build(story, facts, played)
    wrong = report.failings(story, facts, played)
    for line in report.summary(numbers, wrong):
        print_line(line)
    if settings.report is not None:
        from onebox.report_html import write_html

        (settings.report / "report.json").write_bytes(
            orjson.dumps(numbers, option=orjson.OPT_INDENT_2) + b"\n"
        )
        write_html(settings.report / "report.html", story, facts, played, numbers, wrong)
        print_line(f"report: {settings.report / 'report.html'} and report.json")
    return wrong


class Demo:
    """One run of the demo."""

    def __init__(
        self,
        settings: DemoSettings,
        story: Story,
        facts: Facts,
        stage: view.Stage,
        shown: display.Display,
        supervisor: Supervisor,
        state: Path,
        chosen: Ports,
    ) -> None:
        self._settings = settings
        self._story = story
        self._facts = facts
        self._stage = stage
        self._display = shown
        self._supervisor = supervisor
        self._state = state
        nodes = {node: [d.device for d in story.devices if d.node == node] for node in story.nodes}
        self._box = OneBox(
            BoxSettings(
                state=state,
                ports=chosen,
                model=settings.model,
                runner_nodes=nodes,
                kafka_memory_bytes=_KAFKA_MEMORY_BYTES,
                checkpoint_grace_seconds=5.0,
            ),
            supervisor,
        )
        self._problems: list[str] = []

    async def play(self, began: float) -> report.Run:
        """Start everything, watch the story to its end, and stop everything."""
        async with beside(self._display.run()):
            try:
                async with asyncio.timeout(self._settings.limit_seconds):
                    async with beside(self._show_worker()):
                        await self._box.start()
                    return await self._play_story(began)
            except TimeoutError:
                raise RigcanaryError(
                    f"the demo was not over within {self._settings.limit_seconds:.0f} s"
                ) from None
            finally:
                await self._supervisor.stop(self._agents(), 2.0)
                await self._box.stop(keep=False)

    async def _play_story(self, began: float) -> report.Run:
        settings, facts = self._settings, self._facts
        client = RunnerClient(self._box.settings.runner_url, self._box.settings.token_file, facts)
        try:
            await client.post_job(self._job())
            anchor = math.ceil(
                time.time() + _HEAD_START_SECONDS + _HEAD_START_PER_RIG * settings.rigs
            )
            start = math.floor((anchor - self._story.duration_seconds) / 60) * 60
            self._stage.sim_start, self._stage.web_url = float(start), self._box.settings.web_url
            watcher = KafkaWatcher(self._box.settings.kafka_address, facts)
            deadline = began + settings.limit_seconds - _AFTER_STORY_SECONDS - 15.0
            async with (
                beside(self._box.watch()) as watching,
                beside(watcher.run()),
                beside(client.run()),
                beside(self._keep_time(anchor)),
            ):
                await self._start_agents(float(start), float(anchor))
                await self._until_over(anchor, deadline, watching)
            await client.refresh()
        finally:
            await client.close()
        return report.Run(
            sim_start=float(start),
            speed=settings.speed,
            began_wall=began,
            ready_wall=float(anchor),
            end_wall=time.time(),
            problems=tuple(self._problems),
        )

    def _job(self) -> dict[str, object]:
        first = min(self._story.failures, key=lambda f: f.failed_at_seconds)
        return {
            "name": "demo",
            "trainer": {"seed": self._settings.seed},
            "constraints": {"prefer": [first.device]},
        }

    def _agents(self) -> list[str]:
        return [name for name in self._supervisor.children if name in self._story.nodes]

    async def _start_agents(self, start: float, anchor: float) -> None:
        settings = self._settings
        config = toml.write(
            self._state / "agent.toml",
            {
                "site": SITE,
                "sources": ["sim"],
                "mqtt": {"host": HOST, "port": self._box.mqtt.port},
                "sim": {"rigs": settings.rigs, "cards": settings.cards, "seed": settings.seed},
                "clock": {
                    "speed": settings.speed,
                    "start": start,
                    "anchor": anchor,
                    "until_seconds": self._story.duration_seconds,
                },
            },
        )
        for node in self._story.nodes:
            await self._supervisor.start(
                ChildSpec(
                    name=node,
                    argv=rigcanary_argv("agent", {"--config": config, "--node": node}),
                    stop_seconds=2.0,
                    may_end=True,
                )
            )

    async def _until_over(
        self, anchor: float, deadline: float, watching: asyncio.Task[None]
    ) -> None:
        """Wait for the story's end, and then for migrations that are under way."""
        end = anchor + self._story.duration_seconds / self._settings.speed + _AFTER_STORY_SECONDS
        if end > deadline:
            self._display.notice(
                f"at --speed {self._settings.speed:g} the story takes "
                f"{self._story.duration_seconds / self._settings.speed / 60:.0f} minutes; "
                f"the demo ends before it is over"
            )
        while time.time() < min(end, deadline):
            if watching.done():
                await watching
            await asyncio.sleep(0.2)
        last = min(time.time() + _CATCH_UP_SECONDS, deadline)
        while self._behind() and time.time() < last:
            await asyncio.sleep(0.2)
        for node in self._agents():
            child = self._supervisor.children[node]
            if child.crashed.is_set():
                self._problems.append(f"the agent of {node} ended: {child.output.reason()}")
        for name in ("mqtt", "runner", "worker", "bridge"):
            restarts = self._supervisor.children[name].restarts
            if restarts:
                self._problems.append(f"{name} crashed and was restarted {restarts} times")

    def _behind(self) -> bool:
        """Whether the rows lag behind the story, or a job is on its way."""
        counted = self._facts.counted_to()
        end = self._stage.sim_start + (self._stage.sim_seconds or 0.0)
        return self._facts.unfinished() > 0 or (
            counted is not None and counted < end - _OPEN_MINUTES * 60
        )

    async def _keep_time(self, anchor: float) -> None:
        while True:
            self._stage.sim_seconds = min(
                (time.time() - anchor) * self._settings.speed, self._story.duration_seconds
            )
            await asyncio.sleep(0.1)

    async def _show_worker(self) -> None:
        """Say what the worker waits for while it starts; it takes longest."""
        while True:
            step = self._stage.step("worker")
            if step.state == "starting":
                step.detail = self._box.parts.worker_waits_for
            await asyncio.sleep(0.2)


class _Observer:
    """Passes the parts' states on, the sixteen agents as one line."""

    def __init__(self, shown: display.Display) -> None:
        self._display = shown

    def __call__(self, name: str, state: State, detail: str) -> None:
        if name in {"mqtt", "kafka", "runner", "worker", "bridge"} or detail:
            self._display.step(name, state, detail)
