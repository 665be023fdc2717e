"""What a source of readings is.

A read has three outcomes: data (a list is returned), not here (``NotHere``: the tool, library
or file is absent, which says nothing about the cards) and failed (``ReadFailed``: it is there
but gave no answer). One source's failure is its own: the sampler goes on with the others.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from contract.errors import RigcanaryError

DeviceReading = dict[str, Any]
"""One entry of ``devices`` of a telemetry message: ``device`` (text), ``index``, ``vendor``,
``model``, ``state``, any of the sensors of ``contract.signals`` in their base units (None where
the card has no such sensor), ``methods``. dT/dt is the sampler's to add.

``pci_address`` (``0000:01:00.0``) stays inside the agent: it joins what the kernel says to a card.
So does ``details``, numbers that the contract has no name for (name with unit → number).
A sensor of the rig names in ``attach`` what it belongs to, instead of a ``device`` of its own:
``agents.merge.attach`` says how that is read."""

EVERY_CARD: Final = "*"
"""``attach`` of a sensor that serves all cards of the rig: its inlet, its 12 V rail."""
ONLY_CARD: Final = "?"
"""``attach`` of a sensor that nobody mapped to a card: it counts where there is one card."""


class NotHere(RigcanaryError):
    """The source's tool, library or file is absent; the message says which, for a person."""


class NoSample(RigcanaryError):
    """The rig itself took no sample at this instant: a gap in a recording, a simulated outage.

    Nothing is sent then, as the rig would have sent nothing.
    """


class ReadFailed(RigcanaryError):
    """The source is there and gave no usable answer; the message says what it said."""


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
            ReadFailed: it did not answer.
            NoSample: only sources that play a rig back.
        """
        ...

    def close(self) -> None:
        """Give up what the source holds; harmless when it holds nothing."""
        ...
