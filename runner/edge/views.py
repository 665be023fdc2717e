"""What the HTTP interface reads; runs in the engine's thread."""

from runner.edge.engine import Engine
from runner.edge.replies import CardOut, NodeOut
from runner.job import ACTIVE, Job
from runner.migration import Migration


def jobs(engine: Engine, limit: int) -> list[Job]:
    """The newest jobs, newest first, each as it stands now."""
    return [engine.jobs.get(job.id, job) for job in engine.store.jobs(limit)]


def job(engine: Engine, job_id: str) -> Job | None:
    """One job, open or ended."""
    return engine.jobs.get(job_id) or engine.store.job(job_id)


def migrations(engine: Engine, limit: int) -> list[Migration]:
    """The newest migrations, newest first."""
    return [engine.migrations.get(m.id, m) for m in engine.store.migrations(limit)]


def nodes(engine: Engine) -> list[NodeOut]:
    """Known nodes in the order of their listing, then those that are only cordoned."""
    listed = {view.name: view.devices for view in engine.nodes()}
    for cordon in engine.cordons:
        listed.setdefault(cordon.node, ())
    running = [j for j in engine.jobs.values() if j.state in ACTIVE]
    result = []
    for name, devices in listed.items():
        reasons: dict[str | None, list[str]] = {}
        for cordon in engine.cordons:
            if cordon.node == name:
                reasons.setdefault(cordon.device, []).append(cordon.reason)
        cards = [*devices, *(d for d in reasons if d is not None and d not in devices)]
        here = [(j.id, p) for j in running for p in j.places if p.node == name]
        result.append(
            NodeOut(
                node=name,
                cordoned=None in reasons,
                reasons=reasons.get(None, []),
                devices=[
                    CardOut(
                        device=d,
                        cordoned=d in reasons,
                        reasons=reasons.get(d, []),
                        jobs=[job_id for job_id, p in here if p.device == d],
                    )
                    for d in cards
                ],
                jobs=sorted({job_id for job_id, _ in here}),
            )
        )
    return result
