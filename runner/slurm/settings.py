"""Settings of ``rigcanary slurm``."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class SlurmSettings(BaseModel):
    """Where decisions come in, and what is done with them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8401, ge=0, le=65_535)
    """Port of /v1/webhooks, /healthz and /metrics; 0 takes a free one."""
    state_dir: Path = Path("rigcanary-state/slurm")
    """Folder of the webhook secret, which is made there at the first start."""
    webhook_secret: SecretStr | None = None
    """One or several ``whsec_…`` separated by blanks; the one in ``state_dir`` unless given."""
    site: str | None = None
    """Decisions of other sites are ignored; all are taken unless given."""
    nodes: dict[str, str] = {}
    """Name in telemetry → ``NodeName`` in Slurm, where they differ."""
    requeue: bool = True
    """Requeue the jobs of a node whose card fails; without it the node is only drained."""
    command_seconds: float = Field(default=10.0, gt=0, le=60)
    """How long a command of Slurm may take."""
