"""What becomes of a job whose processes have all ended. Pure."""

from collections.abc import Sequence

from runner.job import MAX_FAILURES, Job, JobState, backoff_ms
from runner.launchers.base import Exit

EXIT_KINDS = ("finished", "asked", "unplanned")


def kind_of(job: Job, exits: Sequence[Exit]) -> str:
    """One of ``EXIT_KINDS``."""
    if all(e.returncode == 0 and not e.asked for e in exits):
        return "finished"
    return "asked" if job.state is JobState.STOPPING else "unplanned"


def after_exit(
    job: Job, exits: Sequence[Exit], now_ms: int, *, jitter: float, last_output: str
) -> Job:
    """The job after its processes' ends, one exit a rank: ended, or queued to start again.

    ``jitter`` (0–1) spreads the waits; ``last_output`` goes into the message.
    """
    kind = kind_of(job, exits)
    if kind == "finished":
        return job.to(JobState.COMPLETED, ended_ms=now_ms, exit_code=0, error=None)
    # The one that failed of its own, before those that were stopped because of it.
    bad = min(exits, key=lambda e: (e.returncode == 0, e.asked))
    if kind == "asked" and job.cancelled:
        return job.to(JobState.CANCELLED, ended_ms=now_ms, exit_code=bad.returncode)
    if kind == "asked" and bad.error is None:
        return job.to(JobState.QUEUED, places=(), error=None, exit_code=bad.returncode)
    failures = job.failures + 1
    error = explain(bad, last_output)
    # A machine may refuse a job that has run elsewhere: that is not the command's fault.
    blamed = bad.error is not None and not bad.refused
    hopeless = blamed and job.reported_generation == 0
    if kind == "unplanned" and (hopeless or failures >= MAX_FAILURES):
        return job.to(
            JobState.FAILED,
            ended_ms=now_ms,
            failures=failures,
            error=error,
            exit_code=bad.returncode,
        )
    return job.to(
        JobState.QUEUED,
        places=(),
        failures=failures,
        error=error,
        exit_code=bad.returncode,
        not_before_ms=now_ms + backoff_ms(failures, jitter),
    )


def last_line(output: str) -> str:
    """The last line of a process's output, at most 300 characters."""
    lines = output.strip().splitlines()
    return lines[-1][-300:] if lines else ""


def explain(end: Exit, last_output: str) -> str:
    """One line about an end that was not asked for."""
    if end.error is not None:
        return end.error
    if end.returncode is None:
        how = "ended unseen"
    elif end.returncode < 0:
        how = f"was ended by signal {-end.returncode}"
    elif end.returncode == 0:
        how = "was asked to end by somebody else"
    else:
        how = f"ended with exit code {end.returncode}"
    return (
        f"the process {how}; its last output: {last_output}"
        if last_output
        else (f"the process {how}")
    )
