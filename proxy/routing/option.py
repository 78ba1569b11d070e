"""Where a request could run: links and what a policy sees of them, without those that cannot work together."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from proxy.routing.cost import Candidate
from proxy.routing.transport_choice import Path, choose_path
from proxy.routing.worker_view import WorkerView
from proxy.workers.worker_link import WorkerLink

View = Callable[[WorkerLink], WorkerView]


@dataclass(frozen=True, slots=True)
class Option:
    """A pair, or one of the two alone."""

    prefill: WorkerLink | None
    decode: WorkerLink | None
    candidate: Candidate
    transport: str | None = None  # of a pair

    def num_avoided(self, avoid: Set[str]) -> int:
        return sum(link is not None and link.incarnation in avoid for link in (self.prefill, self.decode))


def pairs(prefills: Sequence[WorkerLink], decodes: Sequence[WorkerLink], view: View, failed: Set[Path]) -> list[Option]:
    """Every two that have a transport in common."""
    options = []
    for prefill in prefills:
        for decode in decodes:
            path = choose_path(prefill.member, decode.member, failed)
            if path is not None:
                is_remote = prefill.member.node != decode.member.node
                candidate = Candidate(view(prefill), view(decode), is_remote)
                options.append(Option(prefill, decode, candidate, path.transport))
    return options


def prefills_alone(links: Sequence[WorkerLink], view: View) -> list[Option]:
    return [Option(link, None, Candidate(view(link), None)) for link in links]


def decodes_alone(links: Sequence[WorkerLink], view: View) -> list[Option]:
    return [Option(None, link, Candidate(None, view(link))) for link in links]


def least_avoided(options: Sequence[Option], avoid: Set[str]) -> Sequence[Option]:
    """Those with the fewest workers that are better avoided."""
    fewest = min((option.num_avoided(avoid) for option in options), default=0)
    return [option for option in options if option.num_avoided(avoid) == fewest]
