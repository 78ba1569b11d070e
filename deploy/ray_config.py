"""Which Ray a cluster runs on: one that `pdserve up` starts, the usual case, or one that runs already."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, model_validator

CLIENT = "ray://"


class RayConfig(BaseModel):
    """`labels` and `resources` are of this machine, for placing workers on it (`placement` of a pool)."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)  # a label may look like a number

    address: str | None = Field(None, pattern=r"^(ray://)?[^/\s]+:\d+$")  # of one that runs; None: it is started
    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _own_machine(self) -> RayConfig:
        if self.address is not None and (self.labels or self.resources):
            raise ValueError(
                "labels and resources are of a Ray that is started here, and address names one that runs: "
                "give them to its `ray start`"
            )
        return self

    @property
    def is_client(self) -> bool:
        """Whether it is reached through its client port, so that this machine need not be one of its own."""
        return self.address is not None and self.address.startswith(CLIENT)


def start_arguments(labels: Mapping[str, str], resources: Mapping[str, float]) -> list[str]:
    """Of `ray start`."""
    arguments = []
    if labels:
        arguments += ["--labels", ",".join(f"{name}={value}" for name, value in labels.items())]
    if resources:
        arguments += ["--resources", json.dumps(dict(resources))]
    return arguments
