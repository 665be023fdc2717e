"""Reads what a job has added to its progress file."""

from pathlib import Path
from typing import Final

from runner.edge.commands import progress_path
from runner.job import Job
from runner.progress import Point, parse

READ_BYTES: Final = 256 * 1024
"""Read at once; a process that writes faster is read over several rounds."""
MAX_LINE_BYTES: Final = 16 * 1024
FINAL_READS: Final = 64
"""Rounds of reading after a process has ended."""


def read_progress(
    job: Job, job_dir: Path, now_ms: int, to_the_end: bool
) -> tuple[list[Point], int, int]:
    """New points of rank 0, the offset after them, and the number of unusable lines."""
    if job.generation == 0 or not job.places:
        return [], job.progress_offset, 0
    path = progress_path(job_dir, job.generation, 0)
    points: list[Point] = []
    offset, bad = job.progress_offset, 0
    try:
        with path.open("rb") as file:
            for _ in range(FINAL_READS if to_the_end else 1):
                file.seek(offset)
                block = file.read(READ_BYTES)
                end = block.rfind(b"\n") + 1
                if end == 0:
                    if len(block) > MAX_LINE_BYTES:  # no line of ours: step over it
                        offset, bad = offset + len(block), bad + 1
                        continue
                    break
                for line in block[:end].splitlines():
                    point = parse(
                        line,
                        now_ms=now_ms,
                        node=job.places[0].node,
                        device=job.places[0].device,
                        generation=job.generation,
                    )
                    if point is None:
                        bad += 1
                    else:
                        points.append(point)
                offset += end
    except FileNotFoundError:
        return [], job.progress_offset, 0
    return points, offset, bad
