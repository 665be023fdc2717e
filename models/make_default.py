"""Makes the shipped model from nothing: simulates fleets, trains, writes ``models/default``.

``python -m models.make_default --work DIR``: about forty minutes on two cores, most of it the
simulation; fleets that are in DIR already are kept. TensorFlow adds up in any order on several
threads, so a second run gives a model that is alike, not the same.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from models.card import DEFAULT
from models.fit import FitOptions
from models.train import TrainOptions, train
from simulator.dataset import write_fleet
from simulator.fleet import FleetSpec

ORIGIN: Final = "simulated data only"
COMMAND: Final = "python -m models.make_default"

# Many cards that fail, in half a day each, at several cadences: what a failure looks like.
TRAINING: Final = tuple(
    FleetSpec(
        rigs=50,
        cards=8,
        days=0.5,
        seed=seed,
        failure_share=0.8,
        interval_seconds=interval,
        site=f"s{seed}",
    )
    for seed, interval in ((201, 10), (202, 20), (203, 15), (206, 20), (207, 15))
)
# Fleets that mostly live, for days: what false alarms cost.
VALIDATION: Final = tuple(
    FleetSpec(
        rigs=20,
        cards=8,
        days=2.5,
        seed=seed,
        failure_share=0.5,
        interval_seconds=interval,
        site=f"s{seed}",
    )
    for seed, interval in ((102, 5), (104, 20), (106, 10))
)
OPTIONS: Final = TrainOptions(
    seed=0,
    max_windows=60_000,
    validation_days=420.0,
    # It serves fleets that the simulator does not know, which raise more alarms.
    budget_share=0.75,
    origin=ORIGIN,
    fit=FitOptions(epochs=8),
)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def simulate(spec: FleetSpec, work: Path) -> Path:
    """The fleet's data set in ``work``, written unless it is finished already."""
    folder = work / spec.site
    if not (folder / "failures.csv").is_file():
        _say(f"simulating {folder}")
        write_fleet(spec, folder, force=True)
    return folder


def main() -> None:
    """Simulate what is missing, train, write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the fleets")
    parser.add_argument("--out", type=Path, default=DEFAULT, help="model folder to write")
    arguments = parser.parse_args()
    training = [simulate(spec, arguments.work) for spec in TRAINING]
    validation = [simulate(spec, arguments.work) for spec in VALIDATION]
    train(training, arguments.out, OPTIONS, _say, COMMAND, validation)


if __name__ == "__main__":
    main()
