"""From a job to the command lines and environments of its processes."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from runner.job import Job
from runner.launchers.base import Launch
from runner.placement import Place


def launches(job: Job, job_dir: Path) -> list[Launch]:
    """One launch for each rank of the job's present generation."""
    result = []
    for rank, place in enumerate(job.places):
        progress_file = progress_path(job_dir, job.generation, rank)
        checkpoint_dir = Path(job.spec.checkpoint_dir)
        environment = {
            "RIGCANARY_JOB_ID": job.id,
            "RIGCANARY_NODE": place.node,
            "RIGCANARY_DEVICE": place.device or "",
            "RIGCANARY_CHECKPOINT_DIR": str(checkpoint_dir),
            "RIGCANARY_PROGRESS_FILE": str(progress_file),
            "RIGCANARY_GENERATION": str(job.generation),
            "RIGCANARY_RANK": str(rank),
            "RIGCANARY_WORLD_SIZE": str(len(job.places)),
        }
        if _is_nvidia(place):
            environment["CUDA_VISIBLE_DEVICES"] = place.device or ""
        result.append(
            Launch(
                job_id=job.id,
                job_dir=job_dir,
                generation=job.generation,
                rank=rank,
                world_size=len(job.places),
                place=place,
                command=job.spec.command or trainer_command(job.spec.trainer or {}),
                checkpoint_dir=checkpoint_dir,
                progress_file=progress_file,
                environment=environment,
            )
        )
    return result


def trainer_command(trainer: Mapping[str, Any]) -> list[str]:
    """The built-in trainer's command line."""
    return [sys.executable, "-m", "runner.trainer", "--settings", orjson.dumps(trainer).decode()]


def progress_path(job_dir: Path, generation: int, rank: int) -> Path:
    """Where a process of that start reports."""
    return job_dir / f"progress-{generation}-{rank}.jsonl"


def _is_nvidia(place: Place) -> bool:
    return place.device is not None and place.device.startswith(("GPU-", "MIG-"))
