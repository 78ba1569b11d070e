"""On which machine a worker starts: pure, from what machines have and what was placed there.

What somebody else's actors hold of a machine is not counted: Ray lets a worker wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.roles import RoleName
from cluster.spec import ProcessSpec

PARTNERS: dict[RoleName, RoleName] = {"prefill": "decode", "decode": "prefill"}


@dataclass(frozen=True, slots=True)
class Node:
    """One machine, as Ray knows it."""

    id: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)  # in all, free or not


class NoPlaceError(Exception):
    """No machine fits; the message says what is wanted and what to do."""


class Placements:
    """Maintains on which node each living worker is, by incarnation."""

    def __init__(self) -> None:
        self._placed: dict[str, tuple[ProcessSpec, str]] = {}

    def choose(self, spec: ProcessSpec, nodes: Sequence[Node]) -> Node:
        """Of equals the first. Raises NoPlaceError."""
        fitting = [node for node in nodes if self._fits(spec, node)]
        if not fitting:
            raise NoPlaceError(_missing(spec, nodes))

        def cost(node: Node) -> tuple[int, int, int]:
            here = Counter(placed.role for placed in self._on(node))
            partner = PARTNERS.get(spec.role)
            without_partner = here[partner] - here[spec.role] if spec.pairs_on_node and partner is not None else 0
            return -max(0, without_partner), here[spec.role], here.total()

        return min(fitting, key=cost)

    def add(self, spec: ProcessSpec, node: str) -> None:
        self._placed[spec.incarnation] = (spec, node)

    def forget(self, incarnation: str) -> None:
        self._placed.pop(incarnation, None)

    def _fits(self, spec: ProcessSpec, node: Node) -> bool:
        if any(node.labels.get(name) != value for name, value in spec.placement.labels.items()):
            return False
        held = _sum(placed.holds for placed in self._on(node))
        return all(node.resources.get(name, 0.0) - held[name] >= amount for name, amount in spec.holds.items())

    def _on(self, node: Node) -> list[ProcessSpec]:
        return [spec for spec, placed_on in self._placed.values() if placed_on == node.id]


def _sum(amounts: Iterable[Mapping[str, float]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for some in amounts:
        total.update(some)  # counts by type, and adds any numbers
    return total


def _missing(spec: ProcessSpec, nodes: Sequence[Node]) -> str:
    """Names what was asked for, and how many machines there are."""
    labels = [f"{name}={value}" for name, value in spec.placement.labels.items()]
    resources = [f"{amount:g} free {name}" for name, amount in spec.holds.items()]
    wanted = " and ".join([*labels, *resources]) or "nothing in particular"
    return (
        f"none of {len(nodes)} machines has {wanted}, which {spec.name} needs: bring one in (`pdserve join` takes "
        f"--label and --resource), or change the placement of the pool"
    )
