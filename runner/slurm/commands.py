"""Slurm by its own commands: they are what every cluster has, with its login and its limits."""

import re
import subprocess
from collections.abc import Sequence
from typing import Final

from contract.errors import RigcanaryError
from runner.slurm.actuator import Node, SlurmJob

_AWAY: Final = re.compile(
    r"Unable to contact|Connection (refused|timed out)|communication|Zero Bytes|Socket timed out"
    r"|authentication|munge",
    re.I,
)
_NO_NODE: Final = re.compile(r"not found|Invalid node name", re.I)
_ENDED: Final = re.compile(r"Invalid job id|already|disabled|completing|finished|not pending", re.I)
_FIELD: Final = re.compile(r"(?:^|\s)(State|Reason)=(.*?)(?=\s+[A-Z][A-Za-z]+=|$)")


class SlurmAway(RigcanaryError):
    """The controller does not answer, or its commands are not there; try again later."""


class SlurmRefused(RigcanaryError):
    """Slurm answered, and said no."""


class SlurmCommands:
    """``scontrol`` and ``squeue``, each given ``timeout_seconds``."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds

    def node(self, name: str) -> Node | None:
        """The node, None when there is no such node.

        Raises:
            SlurmAway: as every method here.
        """
        code, out = self._run("scontrol", "--oneliner", "show", "node", name)
        if code != 0 or "State=" not in out:
            if _NO_NODE.search(out):
                return None
            raise SlurmRefused(f"scontrol show node {name}: {out}")
        fields = dict(_FIELD.findall(out))
        flags = frozenset(re.split(r"[+*~#!%$@^-]+", fields["State"].strip().upper())) - {""}
        # Slurm adds who set it and when: "reason [root@2026-01-01T00:00:00]".
        reason = re.sub(r"\s*\[[^\[\]]*@[^\[\]]*\]\s*$", "", fields.get("Reason", ""))
        return Node(flags, "" if reason in ("none", "(null)") else reason.strip())

    def drain(self, name: str, reason: str) -> None:
        """``state=drain`` with the reason."""
        self._update(f"NodeName={name}", "State=DRAIN", f"Reason={reason}")

    def resume(self, name: str) -> None:
        """``state=resume``; a node that is not drained is fine."""
        try:
            self._update(f"NodeName={name}", "State=RESUME")
        except SlurmRefused as error:
            if "Invalid node state" not in str(error):
                raise

    def jobs_on(self, name: str) -> list[SlurmJob]:
        """Running jobs of the node, and whether they may be requeued."""
        code, out = self._run("squeue", "-h", "-w", name, "-t", "R", "-o", "%A")
        if code != 0:
            raise SlurmRefused(f"squeue -w {name}: {out}")
        found = []
        for job_id in dict.fromkeys(out.split()):
            code, shown = self._run("scontrol", "--oneliner", "show", "job", job_id)
            if code == 0:  # else it has ended meanwhile
                found.append(SlurmJob(job_id, bool(re.search(r"\bRequeue=1\b", shown))))
        return found

    def requeue(self, job_id: str) -> bool:
        """``scontrol requeue``; False when the job had ended."""
        code, out = self._run("scontrol", "requeue", job_id)
        if code != 0 and not _ENDED.search(out):
            raise SlurmRefused(f"scontrol requeue {job_id}: {out}")
        return code == 0

    def start_now(self, job_ids: Sequence[str]) -> set[str]:
        """Of requeued jobs, start those that wait; returns those that need no more asking.

        Slurm sets the start of a requeued job two minutes ahead at the moment its last process
        has ended, so the time that was asked for before that is lost.
        """
        code, out = self._run("squeue", "-h", "-j", ",".join(job_ids), "-o", "%A %T")
        if code != 0 and not _ENDED.search(out):
            raise SlurmRefused(f"squeue: {out}")
        states = dict(line.split() for line in out.splitlines()) if code == 0 else {}
        for job_id, state in states.items():
            if state == "PENDING":
                # Refused means that it started or was held or cancelled meanwhile.
                self._run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        return {job_id for job_id in job_ids if states.get(job_id) != "COMPLETING"}

    def _update(self, *words: str) -> None:
        code, out = self._run("scontrol", "update", *words)
        if code != 0:
            raise SlurmRefused(f"scontrol update {' '.join(words)}: {out}")

    def _run(self, *words: str) -> tuple[int, str]:
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._timeout_seconds,
                check=False,
            )
        except FileNotFoundError as error:
            raise SlurmAway(
                f"{words[0]} is not installed here; run this on a host of Slurm"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SlurmAway(f"{words[0]} did not end in {self._timeout_seconds:g} s") from error
        out = done.stdout.decode(errors="replace").strip()
        if done.returncode != 0 and _AWAY.search(out):
            raise SlurmAway(f"{words[0]}: {out}")
        return done.returncode, out
