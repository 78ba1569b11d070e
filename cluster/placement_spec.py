"""Where the workers of a pool may start: on machines with given labels, that have what each of them holds.

Labels and resources are Ray's: a machine gets them from `pdserve join`, `ray start`, or Kubernetes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Affinity = Literal["auto", "spread", "pair"]
GPU = "GPU"  # Ray's name of it


class PlacementSpec(BaseModel):
    """Of each worker of a pool. A machine must fit; of those that do, `affinity` says which is better.

    `pair`: beside a worker of the other role that has no partner there yet. `spread`: where the fewest of its own role
    are. `auto`: pair for workers that can hand KV over within a machine only (NCCL), else spread.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)  # a label may look like a number

    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    affinity: Affinity = "auto"
