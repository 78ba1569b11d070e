"""Whether pools are changed now: what was needed, long enough, and never twice for one cause.

Pure; time is an argument. A lack and an excess must last, and between them lies a band where nothing happens, so that
noise changes nothing. After a change the pool rests until its workers are ready and `cooldown_s` have passed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.autoscale.need import Need
from cluster.autoscale.spec import SCALED_ROLES, AutoscaleSpec, ScaledRole


@dataclass(frozen=True, slots=True)
class PoolState:
    size: int  # workers wanted
    is_settled: bool  # none of them starts or drains
    need: Need | None  # None: not known


@dataclass(frozen=True, slots=True)
class Resize:
    role: ScaledRole
    before: int
    after: int
    reason: str  # a label of `scale_events_total`
    text: str


@dataclass(frozen=True, slots=True)
class RoleChange:
    """`count` workers of one role take the other."""

    role: ScaledRole  # that they get
    giver: ScaledRole
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class AtLimit:
    """A pool lacks workers and may not grow."""

    role: ScaledRole
    text: str


Verdict = Resize | RoleChange | AtLimit


@dataclass(slots=True)
class PoolMemory:
    """Since when a pool has been too small or too large. Changed by `Judge` alone."""

    rests_until: float
    lacks_since: float | None = None
    exceeds_since: float | None = None
    peak: float = 0.0  # of the need, since a window's length after that

    def forget(self) -> None:
        self.lacks_since = self.exceeds_since = None
        self.peak = 0.0


class Judge:
    """Maintains each pool's memory."""

    def __init__(self, spec: AutoscaleSpec, now: float) -> None:
        self._spec = spec
        self._memory = {role: PoolMemory(now) for role in SCALED_ROLES}

    def changed(self, role: ScaledRole, now: float) -> None:
        """The pool has another size now, whoever changed it."""
        memory = self._memory[role]
        memory.forget()
        memory.rests_until = now + self._spec.cooldown_s

    def decide(self, pools: Mapping[ScaledRole, PoolState], now: float) -> Verdict | None:
        """At most one change; the caller makes it and says so with `changed`."""
        for role in SCALED_ROLES:
            self._remember(role, pools[role], now)
        lacking = [role for role in SCALED_ROLES if self._has_lacked(role, now)]
        lacking.sort(key=lambda role: _pressure(pools[role]), reverse=True)
        verdicts: list[Verdict | None] = [self._grow(role, pools, now) for role in lacking]
        verdicts += [self._shrink(role, pools[role], now) for role in SCALED_ROLES]
        found = [verdict for verdict in verdicts if verdict is not None]
        return next((verdict for verdict in found if not isinstance(verdict, AtLimit)), found[0] if found else None)

    def _remember(self, role: ScaledRole, pool: PoolState, now: float) -> None:
        memory, spec = self._memory[role], self._spec
        if not pool.is_settled:
            self.changed(role, now)
            return
        if pool.need is None or now < memory.rests_until:
            memory.forget()
            return
        need = pool.need.workers
        lacks = need > pool.size + min(0.99, spec.tolerance * pool.size)
        exceeds = need <= (pool.size - 1) * (1 - spec.tolerance)
        memory.lacks_since = _since(memory.lacks_since, now) if lacks else None
        memory.exceeds_since = _since(memory.exceeds_since, now) if exceeds else None
        if memory.exceeds_since is None or now - memory.exceeds_since < spec.window_s:
            memory.peak = need  # what is measured still holds some of what was before
        else:
            memory.peak = max(memory.peak, need)

    def _has_lacked(self, role: ScaledRole, now: float) -> bool:
        since = self._memory[role].lacks_since
        return since is not None and now - since >= self._spec.up_after_s

    def _has_exceeded(self, role: ScaledRole, now: float, for_s: float) -> bool:
        since = self._memory[role].exceeds_since
        return since is not None and now - since >= for_s

    def _grow(self, role: ScaledRole, pools: Mapping[ScaledRole, PoolState], now: float) -> Verdict:
        spec, pool = self._spec, pools[role]
        need = pool.need
        assert need is not None
        wanted = max(pool.size + 1, math.ceil(need.workers / (1 + spec.tolerance / 2)))
        after = min(wanted, spec.limits(role).max)
        text = f"{need.text}, {need.workers:.2f} with headroom" if need.reason == "load" else need.text
        giver: ScaledRole = "decode" if role == "prefill" else "prefill"
        spare = self._spare(giver, pools[giver], now)
        if after > pool.size and spec.role_change and spare:
            return RoleChange(role, giver, min(after - pool.size, spare), f"{text}; {giver} can spare {spare}")
        if spec.max_workers is not None:
            after = min(after, spec.max_workers - pools[giver].size)
        if after <= pool.size:
            return AtLimit(role, f"{text}, and it may not have more than {pool.size}")
        return Resize(role, pool.size, after, need.reason, text)

    def _spare(self, role: ScaledRole, pool: PoolState, now: float) -> int:
        """Workers that it has had too many for as long as a lack must last."""
        if not self._has_exceeded(role, now, self._spec.up_after_s):
            return 0
        return max(0, pool.size - self._smallest(role))

    def _shrink(self, role: ScaledRole, pool: PoolState, now: float) -> Verdict | None:
        if pool.need is None or not self._has_exceeded(role, now, self._spec.down_after_s):
            return None
        after = self._smallest(role)
        if after >= pool.size:
            return None
        text = f"no more than {self._memory[role].peak:.2f} workers were needed for {self._spec.down_after_s:g} s"
        return Resize(role, pool.size, after, "idle", text)

    def _smallest(self, role: ScaledRole) -> int:
        """That would have done while the pool was too large."""
        needed = math.ceil(self._memory[role].peak / (1 - self._spec.tolerance))
        return self._spec.limits(role).within(needed)


def _pressure(pool: PoolState) -> float:
    return pool.need.workers / pool.size if pool.need is not None else 0.0


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
