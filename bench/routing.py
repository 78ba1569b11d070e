"""`python -m bench.routing`: a public trace of conversations through each routing policy of the proxy, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.replay import Replay, Result, Setting, num_tokens, shared_hit_rate
from bench.table import markdown_table
from bench.trace import TracedRequest, read_trace
from proxy.routing.cost import Candidate
from proxy.routing.policy import POLICIES, Policy, Question

HEADINGS = (
    *("policy", "hit rate", "of one shared cache's", "tokens computed, busiest / mean"),
    *("requests, busiest / mean", "wait p50", "p99"),
)


def longest_prefix_only(candidates: Sequence[Candidate], question: Question) -> int:
    """For comparison: whoever has most of the prompt, whatever waits there, and the first one of equals."""
    return max(range(len(candidates)), key=lambda i: _num_cached(candidates[i]))


def _num_cached(candidate: Candidate) -> int:
    return candidate.prefill.num_cached_tokens if candidate.prefill is not None else 0


COMPARED: dict[str, Policy] = {**POLICIES, "longest prefix only": longest_prefix_only}


def row(name: str, result: Result, shared: float) -> tuple[str, ...]:
    return (
        name,
        f"{result.hit_rate:.1%}",
        f"{result.hit_rate / shared:.1%}",
        f"{result.token_imbalance:.2f}",
        f"{result.request_imbalance:.2f}",
        f"{result.wait_p50_s:.1f} s",
        f"{result.wait_p99_s:.1f} s",
    )


def headline(requests: Sequence[TracedRequest], shared: float, setting: Setting) -> str:
    span_s = requests[-1].arrived_at
    share = (1 - shared) * num_tokens(requests) / (span_s * setting.num_workers * setting.tokens_per_s)
    return (
        f"{len(requests)} requests in {span_s:.0f} s, {num_tokens(requests) / 1e6:.1f} M prompt tokens; "
        f"{setting.num_workers} workers with {setting.cache_tokens / 1e6:g} M tokens of cache each, "
        f"{setting.tokens_per_s:g} tokens/s; seed {setting.seed}.\n"
        f"One cache of {setting.num_workers * setting.cache_tokens / 1e6:g} M tokens: {shared:.1%} hits; "
        f"the workers would then be busy {share:.0%} of the time.\n"
    )


def report(num_requests: int | None, setting: Setting) -> str:
    """The table, as Markdown. `num_requests`: only the first so many."""
    requests = read_trace(num_requests)
    shared = shared_hit_rate(requests, setting)
    rows = [row(name, Replay(policy, setting).run(requests), shared) for name, policy in COMPARED.items()]
    return f"{headline(requests, shared, setting)}\n{markdown_table(HEADINGS, rows)}"


def main() -> None:
    setting = Setting()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="only the first so many")
    parser.add_argument("--tokens-per-s", type=float, default=setting.tokens_per_s, help="that a worker computes")
    parser.add_argument("--seed", type=int, default=setting.seed)
    parser.add_argument("--output", type=Path, help="the table, as Markdown")
    arguments = parser.parse_args()
    text = report(arguments.requests, Setting(tokens_per_s=arguments.tokens_per_s, seed=arguments.seed))
    print(text, end="")
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
