"""``rigcanary serve``: the server side on one machine, for a first real rig or a replay."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable

from onebox.box import OneBox
from onebox.logs import quiet_libraries
from onebox.parts import BoxSettings, choose_ports
from onebox.processes import State, Supervisor
from onebox.settings import ServeSettings
from onebox.signals import Interrupts

log = logging.getLogger(__name__)


def run(settings: ServeSettings, print_line: Callable[[str], None]) -> int:
    """Serve until a signal. ``print_line`` gets the one line that says it is ready.

    Returns the exit code. Raises ConfigError and RigcanaryError as :class:`OneBox` does.
    """
    quiet_libraries()
    return asyncio.run(_serve(settings, print_line))


async def _serve(settings: ServeSettings, print_line: Callable[[str], None]) -> int:
    box_settings = _box_settings(settings)
    supervisor = Supervisor(settings.state / "log", observer=_log_state, echo=_echo)
    with Interrupts(supervisor.kill) as interrupts:
        try:
            async with supervisor:
                box = OneBox(box_settings, supervisor)
                try:
                    await box.start()
                    print_line(json.dumps(box.endpoints()))
                    log.info(
                        "ready; attach a rig with: rigcanary agent --site %s --mqtt %s",
                        settings.site,
                        box_settings.mqtt_address,
                    )
                    await box.watch()
                finally:
                    log.info("stopping")
                    await box.stop()
        except asyncio.CancelledError:
            if interrupts.received is None:
                raise
    return 0


def _box_settings(settings: ServeSettings) -> BoxSettings:
    secret = settings.webhook_secret
    return BoxSettings(
        state=settings.state,
        ports=choose_ports(
            mqtt=settings.mqtt_port,
            kafka=settings.kafka_port,
            runner=settings.runner_port,
            web=settings.web_port,
            mqtt_v5=settings.mqtt_v5_port,
        ),
        model=settings.model,
        kafka_memory_bytes=settings.kafka_memory_mb * 1024 * 1024,
        webhook=settings.webhook,
        webhook_secret=secret.get_secret_value() if secret is not None else None,
    )


def _log_state(name: str, state: State, detail: str) -> None:
    if not detail:  # with a detail the supervisor has said it already
        log.info("%s: %s", name, state)


def _echo(name: str, line: str) -> None:
    print(f"{name:>7} | {line}", file=sys.stderr, flush=True)  # noqa: T201 - the children's logs
