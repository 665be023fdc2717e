"""What the cards are busy with: jobs with plateaus and dips, and idle hours between."""

from collections.abc import Sequence

import numpy as np

from simulator.story import Story
from simulator.streams import F64, Int, generator

_FIELDS = 8  # start, level, intensity, jitter, dip depth, dip period, dip share, dip phase


def _jobs(rng: np.random.Generator, duration_seconds: float, service: bool) -> F64:
    """Consecutive jobs [M, 8] that cover the story, in order of their start."""
    jobs: list[list[float]] = []
    at = -float(rng.uniform(0, 7200))
    busy = rng.random() < 0.7
    while at < duration_seconds:
        if busy:
            level = rng.uniform(0.15, 0.8) if service else min(rng.normal(0.95, 0.06), 1.0)
            jitter = rng.uniform(0.05, 0.2) if service else rng.uniform(0.002, 0.04)
            jobs.append(
                [
                    at,
                    max(level, 0.1),
                    rng.uniform(0.65, 1.0),
                    jitter,
                    rng.choice([0.0, 0.3, 0.7, 1.0]),
                    np.exp(rng.uniform(3.5, 7.5)),
                    rng.uniform(0.01, 0.2),
                    rng.uniform(0, 3600),
                ]
            )
            at += float(np.clip(np.exp(rng.normal(np.log(6000), 1.0)), 300, 60_000))
            busy = rng.random() < 0.5
        else:
            jobs.append([at, 0.0, 1.0, 0.0, 0.0, 3600.0, 0.0, 0.0])
            at += float(np.clip(np.exp(rng.normal(np.log(1200), 1.0)), 120, 20_000))
            busy = True
    return np.array(jobs)


class Load:
    """Utilisation of D cards as a function of time alone."""

    def __init__(
        self, story: Story, nodes: Sequence[str], names: Sequence[str], node_D: Int
    ) -> None:
        plans: list[F64] = []
        shared: dict[int, tuple[F64, float]] = {}
        for name, node in zip(names, node_D.tolist(), strict=True):
            if node not in shared:
                rng = generator(story.seed, "jobs", nodes[node])
                training = nodes[node] in story.training_nodes
                together = training or rng.random() < 0.6  # one job over all cards of the rig
                service = rng.random() < 0.2
                plan = _jobs(rng, story.duration_seconds, service)
                if training:  # the dips are its checkpoints
                    plan = np.array([[-600.0, 0.96, 0.85, 0.015, 0.8, 420.0, 0.03, 100.0]])
                shared[node] = (plan, 1.0 if together else -1.0 if service else 0.0)
            plan, mode = shared[node]
            rng = generator(story.seed, "jobs", name)
            if mode == 1.0 and (len(plan) == 1 or rng.random() < 0.93):
                plan = plan.copy()
                plan[:, 1] *= rng.normal(1.0, 0.02)
                plan[:, 2] *= rng.normal(1.0, 0.02)
            else:
                plan = _jobs(rng, story.duration_seconds, mode == -1.0)
            plans.append(plan)
        longest = max(len(plan) for plan in plans)
        self._jobs_DMJ = np.full((len(plans), longest, _FIELDS), np.inf)
        for d, plan in enumerate(plans):
            self._jobs_DMJ[d, : len(plan)] = plan
        self._start_DM = np.ascontiguousarray(self._jobs_DMJ[:, :, 0])
        self._rows = np.arange(len(plans))
        self._from = self._until = -np.inf
        self._now_JD = np.zeros((_FIELDS, len(plans)))

    def at(self, at_seconds: float) -> tuple[F64, F64, F64]:
        """Utilisation (0–1), power intensity of the work, and jitter of the utilisation [D]."""
        if not self._from <= at_seconds < self._until:
            m_D = np.maximum((self._start_DM <= at_seconds).sum(axis=1) - 1, 0)
            self._now_JD = np.ascontiguousarray(self._jobs_DMJ[self._rows, m_D].T)
            self._from = float(self._now_JD[0].max())
            later = self._start_DM[self._start_DM > at_seconds]
            self._until = float(later.min()) if later.size else np.inf
        _, level_D, intensity_D, jitter_D, depth_D, period_D, share_D, phase_D = self._now_JD
        dip_D = np.mod(at_seconds + phase_D, period_D) < share_D * period_D
        return level_D * (1 - depth_D * dip_D), intensity_D, jitter_D
