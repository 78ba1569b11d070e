"""How many workers a pool needs for the traffic that comes, and the sentence that says why.

Pure. A need is a real number of workers, headroom included: what comes per second times what it costs, measured. How
busy workers are is no input: a decode worker with one stream is never idle, and an overloaded one no more than busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.autoscale.spec import AutoscaleSpec, ScaledRole
from cluster.autoscale.speed import PoolSpeed
from cluster.autoscale.traffic import Traffic, quantile

FEWEST = 5  # requests in a window: of less, no quantile is told
WORTH = 0.5  # a target is missed for want of workers only when at least this share of the pool is needed


@dataclass(frozen=True, slots=True)
class Need:
    workers: float
    reason: str  # a label of `scale_events_total`
    text: str


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """What the decode workers hold now."""

    num_reporting: int
    kv_usage: float  # 0 to 1, the mean
    max_streams: int  # that the engine of one runs at a time


def prefill_need(traffic: Traffic, speed: PoolSpeed, spec: AutoscaleSpec) -> Need | None:
    """None while something that it takes was not measured yet."""
    token_s, tokens_per_s = speed.seconds_per_prompt_token, traffic.prefill_tokens_per_s
    if token_s is None or tokens_per_s is None:
        return None
    busy = tokens_per_s * token_s
    workers = busy / (1 - spec.headroom)
    text = f"{tokens_per_s:.0f} prompt tokens/s of {1e3 * token_s:.2f} ms keep {busy:.2f} workers busy"
    return Need(workers, "load", text)


def decode_need(traffic: Traffic, speed: PoolSpeed, load: DecodeLoad, spec: AutoscaleSpec) -> Need | None:
    """By tokens per second and by KV, whichever needs more. None while it is not known what a worker can do."""
    tokens_per_s, target_s = traffic.generated_tokens_per_s, _strictest_tpot_s(traffic, spec)
    streams = speed.streams_within(target_s, load.max_streams)
    step_s = None if streams is None else speed.step_s(streams)
    need = None
    if tokens_per_s is not None and streams is not None and step_s is not None:
        busy = tokens_per_s * step_s / streams
        text = (
            f"{tokens_per_s:.0f} tokens/s, of which a worker makes {streams / step_s:.0f} with {streams:.1f} streams,"
        )
        need = Need(busy / (1 - spec.headroom), "load", f"{text} keep {busy:.2f} workers busy")
    kv = load.num_reporting * load.kv_usage / spec.kv_usage
    if kv > (load.num_reporting if need is None else need.workers):
        return Need(kv, "kv", f"{load.kv_usage:.0%} of the KV blocks are in use, {spec.kv_usage:.0%} may be")
    return need


def missed_target(
    role: ScaledRole,
    traffic: Traffic,
    needs: Mapping[ScaledRole, Need | None],
    sizes: Mapping[ScaledRole, int],
    spec: AutoscaleSpec,
) -> Need | None:
    """One worker more, where requests miss a target although the pool is as large as what was measured asks for.

    A late first token is up to prefill workers, unless decode workers are lacking: then prompts wait for those. Slow
    tokens are up to decode workers, unless prefill workers are lacking: then decode workers compute prompts beside
    them. A pool of which little is needed misses a target for another reason, and more workers would not help.
    """
    other: ScaledRole = "decode" if role == "prefill" else "prefill"
    own, others = needs[role], needs[other]
    is_idle = own is not None and own.workers < WORTH * sizes[role]
    if is_idle or (others is not None and others.workers > sizes[other]):
        return None
    text = _missed_ttft(traffic, spec) if role == "prefill" else _missed_tpot(traffic, spec)
    reason = "ttft" if role == "prefill" else "tpot"
    return None if text is None else Need(sizes[role] + 1.0, reason, text)


def _missed_ttft(traffic: Traffic, spec: AutoscaleSpec) -> str | None:
    for name, times in sorted(traffic.classes.items()):
        text = _missed("TTFT", name, times.first_token_s, spec.targets.of(name).ttft_s, spec.quantile)
        if text is not None:
            queued_s = quantile(times.queue_s, spec.quantile)
            return text if queued_s is None else f"{text}, of it in the queue {queued_s:.2f} s"
    return None


def _missed_tpot(traffic: Traffic, spec: AutoscaleSpec) -> str | None:
    for name, times in sorted(traffic.classes.items()):
        text = _missed("TPOT", name, times.per_token_s, spec.targets.of(name).tpot_s, spec.quantile)
        if text is not None:
            return text
    return None


def _missed(what: str, name: str, seconds: Sequence[float], target_s: float | None, share: float) -> str | None:
    seen_s = quantile(seconds, share)
    if target_s is None or seen_s is None or seen_s <= target_s or len(seconds) < FEWEST:
        return None
    return f"{what} p{100 * share:g} of {name} requests is {seen_s:.3g} s, {target_s:g} s is the target"


def _strictest_tpot_s(traffic: Traffic, spec: AutoscaleSpec) -> float | None:
    """Of the classes that come."""
    targets = (spec.targets.of(name).tpot_s for name in traffic.classes)
    return min((target for target in targets if target is not None), default=None)
