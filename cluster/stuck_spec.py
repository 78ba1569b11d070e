"""How long an engine may not turn, be it in a step or between two, before others take over.

A step of a large model on a slow device may take longer than the defaults: then both have to be longer.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class StuckSpec(BaseModel):
    """First the worker's requests move, until it turns again; in the end it is replaced."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after_s: float = Field(10.0, gt=0)
    replaced_after_s: float = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _moves_before_it_replaces(self) -> StuckSpec:
        if self.replaced_after_s < self.after_s:
            raise ValueError(f"replaced_after_s is {self.replaced_after_s:g}: set it to {self.after_s:g} or more")
        return self
