"""What a source of readings is.

A read has four outcomes: data (a list is returned), not here (``NotHere``: the tool, library
or file is absent, which says nothing about the cards), failed (``ReadFailed``: it is there but
gave no usable answer) and late (``ReadLate``: no answer in time). One source's failure is its
own: the sampler goes on with the others.

What may hang, in order of preference:

- Devices that can be asked one by one: ``agents.guarded.Lanes``, a lane a device. A device whose
  outcome is late is returned with its identity and ``state: "unresponsive"``; the others have
  their readings. ``lanes.run({device: lambda: ask(device), …})[device].get()``.
- A tool that prints: ``agents.program.Program(command, deadline).run()``, a child that is killed.
- Anything else: nothing. ``agents.run`` puts every source of real devices behind
  ``agents.guarded.GuardedSource``, and a read that hangs there is late as a whole.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from contract.errors import RigcanaryError

DeviceReading = dict[str, Any]
"""One entry of ``devices`` of a telemetry message: ``device`` (text), ``index``, ``vendor``,
``model``, ``state``, any of the sensors of ``contract.signals`` in their base units (None where
the card has no such sensor), ``methods`` (sensor → how, for values that stand in for a sensor;
a real sensor's value has none). dT/dt is the sampler's to add.

Three keys never leave the agent. ``details``: what the contract has no name for, as name with
unit → number; the agent's own metrics show them. ``nulled``: sensor → reason, for values that the
source itself knew to be none and gave as None; the sampler counts them with those that it finds
(``agents.plausible``). ``pci_address`` (``0000:01:00.0``): joins what the kernel says to a card.

A sensor of the rig names in ``attach`` what it belongs to, instead of a ``device`` of its own:
``agents.merge.attach`` says how that is read."""

EVERY_CARD: Final = "*"
"""``attach`` of a sensor that serves all cards of the rig: its inlet, its 12 V rail."""
ONLY_CARD: Final = "?"
"""``attach`` of a sensor that nobody mapped to a card: it counts where there is one card."""


class NotHere(RigcanaryError):
    """The source's tool, library or file is absent; the message says which, for a person."""


class ReadFailed(RigcanaryError):
    """The source is there and gave no usable answer; the message says what it said."""


class ReadLate(ReadFailed):
    """The source did not answer in time; it may still, and is asked again at the next tick."""


class NoSample(RigcanaryError):
    """The rig itself took no sample at this instant: a gap in a recording, a simulated outage.

    Nothing is sent then, as the rig would have sent nothing.
    """


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment on an agent's clocks.

    ``ts`` is Unix seconds UTC; ``monotonic`` is seconds of a clock that never steps, from which
    intervals and rates are computed.
    """

    ts: float
    monotonic: float


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """Something structural that a source was told, beside its readings.

    ``type`` is one of ``contract.message.EVENT_TYPES``, ``code`` an Xid number. The card is
    ``device`` where the source knows it, else the sampler looks for the one at ``pci_address``.
    ``ts`` is Unix seconds UTC; None where it is the moment of the read.
    """

    type: str
    message: str
    code: int | None = None
    raw: str | None = None
    device: str | None = None
    pci_address: str | None = None
    ts: float | None = None


@runtime_checkable
class EventSource(Protocol):
    """A source that gives events as well; asked after the reads of a tick."""

    def events(self, now: Instant) -> list[SourceEvent]:
        """What came up since the last call, oldest first; never raises and never waits."""
        ...


class Source(Protocol):
    """Gives readings of a rig's devices."""

    name: str
    """The name in ``agents.table``."""

    enumerates: bool
    """Whether a read lists every device that is there, so that one which is missing from the
    list has vanished (it is then reported as ``lost``). False where rows may just be missing."""

    def read(self, now: Instant) -> list[DeviceReading]:
        """Readings of the devices at ``now``.

        Raises:
            NotHere: the source is absent (it may come back: it is asked again at every tick).
            ReadFailed: it gave no usable answer.
            ReadLate: it did not answer in time.
            NoSample: only sources that play a rig back.
        """
        ...

    def close(self) -> None:
        """Give up what the source holds; harmless when it holds nothing."""
        ...
