"""A sampler over the source nvml in a process of its own, one tick a line of standard input.

A line is a JSON object: ``tick`` (number), or ``settings`` first. What the tick gave is printed
as one JSON object. Tests start it with the stub library in ``LD_LIBRARY_PATH``.
"""

import json
import sys

from agents.messages import Envelope
from agents.run import make_sampler
from agents.settings import AgentSettings
from agents.source import Instant

EPOCH = 1_767_225_600.0


def main() -> None:
    settings = AgentSettings(**json.loads(sys.argv[1]))
    sampler = make_sampler(settings, Envelope("lab", "rig1", "boot"))
    for line in sys.stdin:
        seconds = json.loads(line) * settings.interval_seconds
        tick = sampler.tick(Instant(EPOCH + seconds, 1000.0 + seconds))
        assert tick.telemetry is not None
        print(
            json.dumps(
                {
                    "devices": tick.telemetry["devices"],
                    "events": [[event["type"], event["device"]] for event in tick.events],
                    "notices": tick.notices,
                    "reads": {what: n for (_, what), n in sampler.reads.items()},
                    "nulled": [[*key, n] for key, n in sampler.nulled.items()],
                    "details": sampler.details,
                    "seconds": sampler.read_seconds["nvml"],
                }
            ),
            flush=True,
        )
    sampler.close()


if __name__ == "__main__":
    main()
