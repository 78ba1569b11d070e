"""A pool node's own settings, validated once, at the edge; its deadlines on the wire are those of `TransferConfig`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PoolConfig(BaseModel):
    """One node's budget, and how much of its time offers may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ram_bytes: int = Field(ge=1)
    disk_bytes: int = Field(0, ge=0)  # 0: no tier below the arena
    disk_dir: Path | None = None  # the node makes a folder of its own in it
    watermark: float = Field(0.9, gt=0, le=1)
    max_pulls: int = Field(2, ge=1)  # offers that are read at a time
    max_offers: int = Field(32, ge=1)  # beyond them an offer is refused at once
    offer_timeout_s: float = Field(10.0, gt=0)
    disk_timeout_s: float = Field(0.3, gt=0)  # a lookup waits so long for blocks on the disk

    @model_validator(mode="after")
    def _disk_has_a_place(self) -> PoolConfig:
        if self.disk_bytes and self.disk_dir is None:
            raise ValueError(f"disk_bytes is {self.disk_bytes} and disk_dir is not set: say where, or set it to 0")
        return self
