"""The whole path under load: rigs over MQTT, bridge, Kafka, worker, signed webhooks.

Real processes on one machine. Half an hour of history is taken in first, as fast as it goes, so
that every card has enough rows to be scored; then the cards speak in real time for the measured
minutes, every one of them is scored each minute, and some report a memory error of which the
webhook's latency is taken. Afterwards every message sent is looked for in the scored minute rows.

    python benchmarks/end_to_end.py --cards 1000 --minutes 3 --json
    python benchmarks/end_to_end.py --cards 1000 --minutes 3 --broker kafka --kafka 10.0.0.5:9092
"""

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for ``benchmarks.e2e`` where the project is not installed editable


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cards", type=int, default=1_000, help="cards in all [1000]")
    parser.add_argument("--minutes", type=int, default=3, help="whole minutes measured [3]")
    parser.add_argument(
        "--broker", choices=("embedded", "kafka"), default="embedded",
        help="embedded: Tansu, started here; kafka: the one at --kafka [embedded]",
    )  # fmt: skip
    parser.add_argument(
        "--kafka", metavar="HOST:PORT", help="a Kafka that rigcanary does not use otherwise"
    )
    parser.add_argument("--model", default="default", help="folder of a model, or default")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between samples [5]")
    parser.add_argument("--cards-a-node", type=int, default=8, help="cards of a rig [8]")
    parser.add_argument("--nodes-a-site", type=int, default=2, help="rigs of a site [2]")
    parser.add_argument(
        "--history-minutes", type=int, default=35,
        help="minutes before the measured part; a window of less than 30 is not scored [35]",
    )  # fmt: skip
    parser.add_argument(
        "--fast-history-minutes", type=int, default=3,
        help="the last minutes of it, at the full cadence: throughput is taken there [3]",
    )  # fmt: skip
    parser.add_argument(
        "--catch-up-minutes", type=float, default=15.0,
        help="give the history up after this and measure what is [15]",
    )  # fmt: skip
    parser.add_argument(
        "--peer-seconds", type=float, default=8.0, help="seconds of each peer, 0: none [8]"
    )
    parser.add_argument(
        "--worker-script", type=Path, metavar="FILE",
        help="run this with a settings file instead of 'rigcanary worker', to try a change",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one line of JSON, nothing else")
    return parser.parse_args()


def check(found: argparse.Namespace) -> None:
    """Say what is wrong with the arguments.

    Raises:
        ConfigError: naming the option.
    """
    from contract.errors import ConfigError

    for name, low in (
        ("cards", 1), ("minutes", 1), ("cards_a_node", 1), ("nodes_a_site", 1),
        ("history_minutes", 1), ("fast_history_minutes", 0), ("interval", 0.1),
    ):  # fmt: skip
        if getattr(found, name) < low:
            raise ConfigError(f"--{name.replace('_', '-')} must be {low} or more")
    if found.cards_a_node > 16:
        raise ConfigError("--cards-a-node must be 16 or less: the simulated rigs have no more")
    if found.fast_history_minutes >= found.history_minutes:
        raise ConfigError("--fast-history-minutes must be less than --history-minutes")
    if found.broker == "kafka" and not found.kafka:
        raise ConfigError(
            "--broker kafka needs --kafka HOST:PORT, the address of a running Kafka; without one "
            "take --broker embedded"
        )
    if found.broker == "embedded" and found.kafka:
        raise ConfigError("--kafka goes with --broker kafka")


def table(figures: dict[str, Any]) -> str:
    """The figures for a person."""
    plain = {k: v for k, v in figures.items() if not isinstance(v, dict | list)}
    lines = [f"{name:24} {value}" for name, value in plain.items()]
    for name in ("latency_ms", "risk_latency_seconds", "cpu_seconds_by_process", "memory",
                 "bridge_throughput", "worker_throughput"):  # fmt: skip
        lines.append(f"{name:24} {json.dumps(figures[name])}")
    lines += [f"{'peer':24} {json.dumps(peer)}" for peer in figures["peers"]]
    return "\n".join([*lines, f"{'parameters':24} {json.dumps(figures['parameters'])}"])


def main() -> int:
    """Run and print; the exit code: 0 done, 1 a part failed, 2 wrong usage."""
    found = arguments()
    from contract.errors import RigcanaryError

    try:
        check(found)
        from benchmarks.e2e.run import run
        from benchmarks.e2e.seen import RunSettings

        for library in ("httpx", "aiokafka", "httpcore"):
            logging.getLogger(library).setLevel(logging.CRITICAL)
        settings = RunSettings(
            cards=found.cards, minutes=found.minutes, broker=found.broker, kafka=found.kafka,
            model=found.model, interval_seconds=found.interval, cards_a_node=found.cards_a_node,
            nodes_a_site=found.nodes_a_site, history_minutes=found.history_minutes,
            fast_history_minutes=found.fast_history_minutes,
            catch_up_minutes=found.catch_up_minutes, peer_seconds=found.peer_seconds,
            worker_script=found.worker_script,
        )  # fmt: skip
        figures = asyncio.run(run(settings))
    except RigcanaryError as error:
        print(f"end_to_end: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("end_to_end: stopped", file=sys.stderr)
        return 130
    print(json.dumps(figures) if found.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
