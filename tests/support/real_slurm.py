"""A real Slurm of four nodes on this machine, on free ports, all on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "scontrol", "sbatch", "squeue", "sinfo")
NODES = ("n1", "n2", "n3", "n4")
CONFIG = """\
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0
ReturnToService=2
JobRequeue=0
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=60
InactiveLimit=0
Waittime=0
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MailProg=/bin/true
SlurmdParameters=config_overrides
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 Boards=1"
    " SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN\n"
)
PARTITION = "PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP\n"


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


class SlurmCluster:
    """One controller, four nodes; commands find it through :attr:`environment`."""

    def __init__(self, folder: Path) -> None:
        missing = [p for p in PROGRAMS if shutil.which(p) is None]
        if missing:
            pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
        if os.getuid() != 0:
            pytest.skip("slurmd needs root")
        self.folder = folder
        for name in ("run", "state", "log", *(f"spool/{n}" for n in NODES)):
            (folder / name).mkdir(parents=True)
        ports = free_ports(2 + len(NODES))
        text = CONFIG.format(folder=folder, ports=ports)
        for name, port in zip(NODES, ports[2:], strict=True):
            text += NODE.format(name=name, port=port)
        self.config = folder / "slurm.conf"
        self.config.write_text(text + PARTITION)
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.start_one("slurmctld", "slurmctld", "-D", "-c")
        for name in NODES:
            self.start_one(name, "slurmd", "-D", "-N", name)
        self.until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split().count("idle") == 4)

    def start_one(self, name: str, *words: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                words, env=self.environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        self.run("scancel", "-u", "root")
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)

    def run(self, *words: str) -> str:
        """A command of Slurm; what it printed, errors too."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        return (done.stdout + done.stderr).strip()

    def until(self, holds: "object", seconds: float = 60) -> None:
        """Wait until ``holds()``; with Slurm's own words when it does not come true."""
        assert callable(holds)
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                nodes = self.run("sinfo", "-N", "-o", "%N %t %E")
                log = (self.folder / "log" / "slurmctld.log").read_text()[-3000:]
                raise AssertionError(f"{nodes}\n{self.run('squeue')}\n{log}")
            time.sleep(0.2)

    def state(self, node: str) -> str:
        """Such as ``idle``, ``drng``, ``drain``."""
        return self.run("sinfo", "-h", "-n", node, "-o", "%t").split()[0].rstrip("*")

    def reason(self, node: str) -> str:
        return self.run("sinfo", "-h", "-n", node, "-o", "%E")

    def job(self, job_id: str) -> tuple[str, str]:
        """``(state, nodes)`` of a job."""
        words = self.run("squeue", "-h", "-j", job_id, "-o", "%T %N").split()
        return (words[0], words[1] if len(words) > 1 else "") if words else ("GONE", "")
