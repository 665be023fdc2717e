"""What the built-in trainer can be told (``trainer`` of a job). Imports no TensorFlow."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TrainerSettings(BaseModel):
    """``steps_per_second`` null runs as fast as it can; it holds the demo to a part of a core.

    The defaults make the loss fall for more than ten minutes at five steps a second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal["chars", "digits"] = "chars"
    steps: int = Field(default=100_000, ge=1, le=10**9)
    steps_per_second: float | None = Field(default=5.0, gt=0, le=10_000)
    batch_size: int = Field(default=128, ge=1, le=65536)
    learning_rate: float = Field(default=0.02, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    seed: int = Field(default=7, ge=0, lt=2**63)
    checkpoint_every: int = Field(default=50, ge=1, le=10**9)
    """Steps."""
    keep_last: int = Field(default=3, ge=1, le=100)
