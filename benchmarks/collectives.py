"""What exchanging one gradient costs by each codec, and what it puts on the wire.

    python benchmarks/collectives.py --workers 2 --parameters 10000000 --link 100
    python benchmarks/collectives.py --workers 2 --peer /path/to/python-with-torch

Workers are processes in network namespaces of their own, joined by a bridge whose links are
held to ``--link`` Mbit/s (tbf, both directions); without ``--link`` they share the loopback
interface. Bytes are the interface's own counters. ``--link`` needs root, ``ip`` and ``tc``.
``--peer`` adds PyTorch's gloo (float32 and float16 all_reduce) at the same size.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PREFIX = f"rc{os.getpid()}"
"""Of names that are the machine's: two runs must not meet."""
SUBNET = "10.213.7"
PORT = 23450
CODECS = ("none", "fp16", "onebit")
PEER = """
import json, os, sys, time
rank, world, address, size, rounds, interface = sys.argv[1:]
rank, world, size, rounds = map(int, (rank, world, size, rounds))
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=world)
def received():
    return int(open(f"/sys/class/net/{interface}/statistics/rx_bytes").read())
for name, kind in (("gloo none", torch.float32), ("gloo fp16", torch.float16)):
    x, seconds = torch.randn(size), []
    for turn in range(rounds + 1):
        dist.barrier()
        before, begun = received(), time.perf_counter()
        y = x.to(kind) / world
        dist.all_reduce(y)
        y = y.float()
        seconds.append(time.perf_counter() - begun)
        got = received() - before
    if rank == 0:
        print(json.dumps({"codec": name, "seconds": seconds[1:], "received": got}), flush=True)
dist.barrier()
"""


def received_bytes(interface: str) -> int:
    """The interface's counter."""
    return int(Path(f"/sys/class/net/{interface}/statistics/rx_bytes").read_text())


def worker(arguments: list[str]) -> None:
    """One worker: each codec in turn; the chief prints a line a codec."""
    rank, addresses, size, rounds, interface = (
        int(arguments[0]), arguments[1].split(","), *map(int, arguments[2:4]), arguments[4],
    )  # fmt: skip
    world = len(addresses)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    import tensorflow as tf

    from runner.trainer.codecs import make_codec

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    gradient = tf.random.stateless_normal([size], [1, rank])
    controls = tf.zeros([2])

    def transport(kind: str, mine: Any) -> Any:
        mine = tf.identity(mine)
        context = tf.distribute.get_replica_context()
        if kind == "sum":
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
        return context.all_gather(tf.identity(mine[None]), 0)

    @tf.function
    def meet(one: Any) -> Any:
        return strategy.run(lambda x: transport("sum", x), (one,))

    for name in CODECS:
        codec = make_codec(name, world, [size], 1024)
        residual = tf.Variable(tf.zeros(codec.residual_shape))

        @tf.function
        def step(codec: Any = codec, residual: Any = residual) -> Any:
            message, owed = codec.encode(gradient, controls, residual.read_value())
            residual.assign(owed)
            collected = strategy.run(lambda x: transport(codec.collective, x), (message,))
            return codec.decode(collected).mean_N[0]

        seconds, received = [], 0
        for turn in range(rounds + 1):  # the first one compiles
            float(meet(tf.constant([1.0]))[0])
            before, begun = received_bytes(interface), time.perf_counter()
            float(step())
            if turn:
                seconds.append(time.perf_counter() - begun)
                received = received_bytes(interface) - before
        if rank == 0:
            line = {"codec": name, "seconds": seconds, "received": received}
            print(json.dumps(line), flush=True)
    float(meet(tf.constant([1.0]))[0])
    os._exit(0)


def ip(*arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def namespaces(count: int, megabits: float) -> Iterator[list[list[str]]]:
    """Namespaces on a bridge with limited links; yields what to put before each command."""
    try:
        ip("link", "add", f"{PREFIX}-br", "type", "bridge")
        ip("link", "set", f"{PREFIX}-br", "up")
        for n in range(count):
            space, inner, outer = f"{PREFIX}{n}", "eth0", f"{PREFIX}-v{n}"
            ip("netns", "add", space)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            ip("link", "set", outer, "master", f"{PREFIX}-br", "up")
            ip("-n", space, "addr", "add", f"{SUBNET}.{n + 1}/24", "dev", inner)
            ip("-n", space, "link", "set", inner, "up")
            ip("-n", space, "link", "set", "lo", "up")
            limit = [
                "root",
                "tbf",
                "rate",
                f"{megabits:g}mbit",
                "burst",
                "256kb",
                "latency",
                "50ms",
            ]
            subprocess.run(["tc", "qdisc", "add", "dev", outer, *limit], check=True)
            inside = ["tc", "-n", space, "qdisc", "add", "dev", inner, *limit]
            subprocess.run(inside, check=True)
        yield [["ip", "netns", "exec", f"{PREFIX}{n}"] for n in range(count)]
    finally:
        for n in range(count):
            subprocess.run(["ip", "netns", "del", f"{PREFIX}{n}"], check=False)
        subprocess.run(["ip", "link", "del", f"{PREFIX}-br"], check=False)


def run_all(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run workers side by side; the chief's lines."""
    started = [
        subprocess.Popen(
            c, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for c in commands
    ]  # fmt: skip
    try:
        output, _ = started[0].communicate(timeout=900)
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    finally:
        for process in started:
            process.kill()
            process.communicate()  # also closes its pipe


def measure(
    workers: int, parameters: int, rounds: int, link: float | None, peer: str | None
) -> dict[str, Any]:
    """Medians by codec, bytes received a step by worker 0, and ratios to float32."""

    def commands(
        prefix: list[list[str]], hosts: list[str], interface: str
    ) -> list[list[list[str]]]:
        addresses = ",".join(f"{h}:{PORT + n}" for n, h in enumerate(hosts))
        size = [str(parameters), str(rounds)]
        ours = [
            [*p, sys.executable, __file__, "--worker", str(n), addresses, *size, interface]
            for n, p in enumerate(prefix)
        ]
        if peer is None:
            return [ours]
        meet = f"{hosts[0]}:{PORT + workers}"
        theirs = [
            [*p, peer, "-c", PEER, str(n), str(workers), meet, *size, interface]
            for n, p in enumerate(prefix)
        ]
        return [ours, theirs]

    if link is None:
        sets = commands([[] for _ in range(workers)], ["127.0.0.1"] * workers, "lo")
        rows = [row for one in sets for row in run_all(one)]
    else:
        hosts = [f"{SUBNET}.{n + 1}" for n in range(workers)]
        with namespaces(workers, link) as prefix:
            rows = [row for one in commands(prefix, hosts, "eth0") for row in run_all(one)]
    base = next(row for row in rows if row["codec"] == "none")
    base_seconds = statistics.median(base["seconds"])
    return {
        "workers": workers,
        "parameters": parameters,
        "link_megabits": link,
        "codecs": {
            row["codec"]: {
                "milliseconds": round(1000 * statistics.median(row["seconds"]), 1),
                "time_ratio": round(statistics.median(row["seconds"]) / base_seconds, 3),
                "received_bytes": row["received"],
                "bytes_ratio": round(row["received"] / max(base["received"], 1), 4),
            }
            for row in rows
        },
    }


def main() -> None:
    """The command line."""
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link", type=float, help="Mbit/s; loopback without it")
    parser.add_argument("--peer", help="a Python that has PyTorch")
    a = parser.parse_args()
    print(json.dumps(measure(a.workers, a.parameters, a.rounds, a.link, a.peer), indent=2))


if __name__ == "__main__":
    main()
