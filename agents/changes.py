"""The structural events of a device: what changed between one reading and the next."""

import math
from collections.abc import Iterator

from agents.source import DeviceReading


class DeviceChanges:
    """Remembers of one device what an event must not repeat."""

    __slots__ = ("_ecc_uncorrected", "_state", "_width_is_low")

    def __init__(self) -> None:
        self._state = "ok"
        self._ecc_uncorrected: float | None = None
        self._width_is_low = False

    def observe(self, reading: DeviceReading) -> Iterator[tuple[str, str]]:
        """(event type, message) for each change that ``reading`` brings."""
        yield from self._of_state(str(reading.get("state", "ok")))
        yield from self._of_ecc(_number(reading.get("ecc_uncorrected_total")))
        yield from self._of_width(
            _number(reading.get("pcie_link_width")), _number(reading.get("pcie_link_width_max"))
        )

    def _of_state(self, state: str) -> Iterator[tuple[str, str]]:
        before = self._state
        # "unknown" says that nobody could look: neither a change nor its end.
        if state in ("unknown", before):
            return
        self._state = state
        if state == "lost":
            yield "device_lost", "the driver lost the device, or it vanished"
        elif state == "unresponsive":
            yield "device_unresponsive", "a read of the device did not return in time"
        elif state == "ok":
            yield "device_returned", f"the device answers again after being {before}"

    def _of_ecc(self, count: float | None) -> Iterator[tuple[str, str]]:
        if count is None:
            return
        before, self._ecc_uncorrected = self._ecc_uncorrected, count
        # A lower count is a reset by a driver reload, and what it holds is not known to be new.
        if before is not None and count > before:
            text = f"{count - before:.0f} more uncorrected memory errors, {count:.0f} in all"
            yield "ecc_uncorrected", text

    def _of_width(self, width: float | None, possible: float | None) -> Iterator[tuple[str, str]]:
        if not width or not possible:
            return
        low = width < possible
        if low and not self._width_is_low:
            yield "pcie_width_low", f"PCIe link runs on {width:.0f} of {possible:.0f} lanes"
        self._width_is_low = low


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
