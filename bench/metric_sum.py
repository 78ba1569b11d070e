"""A metric's value, out of what a process exports to Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def metric_sum(text: str, name: str, labels: Mapping[str, str]) -> float:
    """Of the metric's samples that have these labels; 0 without any."""
    own = "\n".join(line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(
        sample.value
        for family in text_string_to_metric_families(f"{own}\n")
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
