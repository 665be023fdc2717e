"""The host: time and disk."""

import re
import shutil
from pathlib import Path
from typing import Final

from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_MUCH_SECONDS: Final = 1.0
_TOOL_SECONDS: Final = 5.0
_LOW_BYTES: Final = 1 << 30
_FULL_BYTES: Final = 100 << 20


def time_sync(machine: Machine) -> list[Finding]:
    """The clock is held by NTP: chrony's own word, else timedatectl's, else the kernel's."""
    name, wanted = "time-sync", "synchronised"
    asked = []
    for argv, read in (
        (("chronyc", "-c", "tracking"), _chrony),
        (("timedatectl", "show"), _timedatectl),
        (("adjtimex", "-p"), _adjtimex),
    ):
        answer = machine.run(*argv, deadline_seconds=_TOOL_SECONDS)
        said = None if answer.good is None else read(answer.good)
        if said is None:
            asked.append(answer.problem or f"{argv[0]} says nothing of use")
            continue
        synchronised, text, offset = said
        if not synchronised:
            return [
                Finding(
                    name,
                    None,
                    Status.WARN,
                    text,
                    wanted,
                    "the clock runs free: readings land in wrong minutes, and the server drops "
                    "what is 5 minutes ahead of its own clock",
                    "install and start chrony or systemd-timesyncd (root)",
                )
            ]
        if offset is not None and abs(offset) > _MUCH_SECONDS:
            return [
                Finding(
                    name,
                    None,
                    Status.FAIL,
                    text,
                    f"within {_MUCH_SECONDS:g} s",
                    "the clock is off",
                    "chronyc makestep (root)",
                )
            ]
        return [Finding(name, None, Status.PASS, text, wanted)]
    return [
        Finding(
            name,
            None,
            Status.UNKNOWN,
            "not shown",
            wanted,
            "; ".join(asked),
            "install chrony (root), which keeps the time and says how well",
        )
    ]


def _chrony(text: str) -> tuple[bool, str, float | None] | None:
    # refid, name, stratum, ref time, system time (offset, s), …, leap status
    row = text.strip().splitlines()[-1].split(",") if text.strip() else []
    try:
        stratum, offset = int(row[2]), float(row[4])
    except (IndexError, ValueError):
        return None
    if row[-1].strip() == "Not synchronised" or stratum == 0:
        return False, "chrony: not synchronised", None
    return True, f"chrony: {offset * 1000:+.3f} ms", offset


def _timedatectl(text: str) -> tuple[bool, str, float | None] | None:
    found = re.search(r"^NTPSynchronized=(yes|no)$", text, re.MULTILINE)
    if found is None:
        return None
    return found[1] == "yes", f"timedatectl: {found[1]}", None


def _adjtimex(text: str) -> tuple[bool, str, float | None] | None:
    found = re.search(r"^\s*status:\s*(\d+)", text, re.MULTILINE)
    if found is None:
        return None
    synchronised = not int(found[1]) & 0x40  # STA_UNSYNC, linux/timex.h
    return synchronised, f"kernel: {'' if synchronised else 'not '}synchronised", None


def state_disk(state: Path | None) -> list[Finding]:
    """Room on the disk that holds the state folder, whether or not the folder is there yet."""
    name, wanted = "state-disk", "1 GiB free"
    if state is None:
        return [Finding(name, None, Status.UNKNOWN, "no state folder", wanted, "none was named")]
    folder = state.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return [
            Finding(
                name,
                None,
                Status.UNKNOWN,
                str(state),
                wanted,
                f"{folder} cannot be asked: {error.strerror}",
            )
        ]
    shown = str(state).replace(str(Path.home()), "~", 1)
    found = f"{shown}: {usage.free / (1 << 30):.1f} GiB free of {usage.total / (1 << 30):.1f}"
    fix = "free some room, or name a folder on another disk (--state)"
    if usage.free < _FULL_BYTES:
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                found,
                wanted,
                "nothing can be kept while the broker is away",
                fix,
            )
        ]
    if usage.free < _LOW_BYTES:
        return [Finding(name, None, Status.WARN, found, wanted, "the disk is nearly full", fix)]
    return [Finding(name, None, Status.PASS, found, wanted)]
