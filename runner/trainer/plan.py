"""What a supervisor is told, and what it tells a worker. Imports no TensorFlow."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RunSettings(BaseModel):
    """A run of ``workers`` processes; times in seconds.

    ``batch_size`` is one worker's, before it is made elastic. ``warmup_steps`` of a compressing
    codec go as float32; null: a tenth of ``steps``. ``momentum`` is kept by each worker before
    the exchange: it is part of what is compressed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(default=1, ge=1, le=64)
    min_workers: int = Field(default=1, ge=1, le=64)
    steps: int = Field(default=1000, ge=1, le=10**9)
    batch_size: int = Field(default=32, ge=1, le=65536)
    learning_rate: float = Field(default=0.05, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    seed: int = Field(default=7, ge=0, lt=2**31)
    codec: Literal["none", "fp16", "onebit", "naive"] = "none"
    row_length: int = Field(default=1024, ge=32, le=1 << 20)
    warmup_steps: int | None = Field(default=None, ge=0)
    mixed_precision: bool = False
    elastic_batch: bool = False
    save_interval: int = Field(default=500, ge=1)
    keep_last: int = Field(default=3, ge=1, le=100)
    failure_threshold: int = Field(default=2, ge=1)
    standby: bool = True
    """Keep a process that has imported everything, from which workers are made by fork."""
    start_seconds: float = Field(default=180.0, gt=0)
    """From the order to a worker's first step; the import counts where there is no standby."""
    beat_seconds: float = Field(default=5.0, gt=0)
    """A worker that has not been heard for so long is stopped, or its machine is."""
    stall_seconds: float = Field(default=120.0, gt=0)
    """No worker finished a step for so long."""
    max_failures: int = Field(default=10, ge=1)
    """Failures in a row without a new checkpoint; then the supervisor gives up."""
    compact_every: int = Field(default=1000, ge=0)
    """Steps between calls of the memory policy; 0: never."""
    step_seconds: float = Field(default=0.0, ge=0)
    """A step takes at least so long: to try things out."""

    @property
    def warmup(self) -> int:
        """Steps before compression begins."""
        if self.codec in {"none", "fp16"}:
            return 0
        return self.steps // 10 if self.warmup_steps is None else self.warmup_steps


class Assignment(BaseModel):
    """One worker's part in one generation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: RunSettings
    rank: int
    generation: int
    addresses: list[str]
    """``host:port`` of each worker, by rank."""
    sizes: list[int]
    """Examples a step of each worker."""
    folder: str
    checkpoint: str | None
    """The folder to begin from."""
