"""One sample without a broker, for a person or a script."""

import logging
import time

from agents.messages import Envelope, encode, new_boot_id
from agents.run import make_clock, make_sampler
from agents.settings import AgentSettings
from contract.errors import RigcanaryError
from contract.message import Message
from contract.signals import SIGNALS

log = logging.getLogger(__name__)

START_SECONDS = 20.0
"""How long a source may be late: a driver that nobody holds open starts its cards first."""


def once(settings: AgentSettings) -> tuple[Message, str]:
    """One telemetry message and its JSON on one line.

    A source that is not here or fails is said in the log; the message then has no devices. One
    that is late is asked again for 20 s.

    Raises:
        RigcanaryError: a source that plays a rig back has no sample at this instant.
    """
    sampler = make_sampler(settings, Envelope(settings.site, settings.node, new_boot_id()))
    try:
        clock = make_clock(settings)
        deadline = time.monotonic() + START_SECONDS
        tick, late = sampler.tick(clock.instant()), 0
        while sampler.late > late and time.monotonic() < deadline:
            late = sampler.late
            time.sleep(0.5)
            tick = sampler.tick(clock.instant())
    finally:
        sampler.close()
    for notice in tick.notices:
        log.warning("%s", notice)
    if tick.telemetry is None:
        raise RigcanaryError("the rig that is played back has no sample at this instant; try again")
    return tick.telemetry, encode(tick.telemetry).decode()


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
