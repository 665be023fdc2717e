"""One sample without a broker, for a person or a script."""

import logging
import time
from typing import Final

from agents.messages import Envelope, encode, new_boot_id
from agents.run import make_clock, make_sampler
from agents.sampler import Tick
from agents.settings import AgentSettings
from contract.errors import RigcanaryError
from contract.message import Message
from contract.signals import SIGNALS

log = logging.getLogger(__name__)

START_SECONDS: Final = 20.0
"""How long a source may be late: a driver that nobody holds open starts its cards first."""


AGAIN_SECONDS: Final = 0.5
_RATE: Final = "temperature_rate_celsius_per_second"
SLOW_SECONDS: Final = 30.0
"""How long to wait for the first answer of a slow tool (ipmitool, tt-smi)."""


def once(settings: AgentSettings) -> tuple[Message, str]:
    """One telemetry message and its JSON on one line.

    A source that is not here or fails is said in the log; the message then has no devices. One
    that is late is asked again for 20 s.

    Raises:
        RigcanaryError: a source that plays a rig back has no sample at this instant, or the file
            that ``--input`` names is not what its source reads.
    """
    tick = _tick(settings)
    if tick.telemetry is None:
        raise RigcanaryError("the rig that is played back has no sample at this instant; try again")
    return tick.telemetry, encode(tick.telemetry).decode()


def only_events(settings: AgentSettings) -> bool:
    """Whether the sources give events and no readings at all."""
    return set(settings.sources) == {"kernel_log"}


def once_events(settings: AgentSettings) -> list[tuple[Message, str]]:
    """The events of one tick, each with its JSON on one line."""
    return [(event, encode(event).decode()) for event in _tick(settings).events]


def event_line(event: Message) -> str:
    """An event as one line for a person."""
    code = "" if event["code"] is None else f" {event['code']}"
    return f"{event['type']}{code}  {event['device'] or event['node']}  {event['message']}"


def _tick(settings: AgentSettings) -> Tick:
    sampler = make_sampler(settings, Envelope(settings.site, settings.node, new_boot_id()))
    try:
        clock = make_clock(settings)
        begun = time.monotonic()
        tick, late, again = sampler.tick(clock.instant()), 0, False
        notices = tick.notices
        while (sampler.late > late and time.monotonic() < begun + START_SECONDS) or (
            sampler.pending and time.monotonic() < begun + SLOW_SECONDS
        ):
            late = sampler.late
            time.sleep(AGAIN_SECONDS)
            tick, again = sampler.tick(clock.instant()), True
            notices += tick.notices
        if settings.input is not None and sampler.troubles:
            told = "; ".join(f"{name} {trouble}" for name, trouble in sampler.troubles.items())
            raise RigcanaryError(f"--input {settings.input}: source {told}")
    finally:
        sampler.close()
    for notice in notices:
        log.warning("%s", notice)
    if again and tick.telemetry is not None:
        # A step of one degree within half a second is no rate of a card's temperature.
        for device in tick.telemetry["devices"]:
            if _RATE in device:
                device[_RATE] = None
    return tick


def table(message: Message) -> str:
    """The message as text for a person: a block of lines a device, absent sensors left out."""
    lines = [f"{message['site']}/{message['node']}: {len(message['devices'])} devices"]
    for device in message["devices"]:
        lines.append(f"{device['device']}  {device.get('model') or ''}  {device['state']}".rstrip())
        for signal in SIGNALS:
            value = device.get(signal.name)
            if value is not None:
                lines.append(f"  {signal.name:38} {value:>12.6g} {signal.unit}")
    return "\n".join(lines)
