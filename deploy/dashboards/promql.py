"""Prometheus queries over this system's metrics, spelt the same way on every dashboard and in every alert.

A query names metrics without their prefix; all its selectors carry the same further matcher.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promql:
    """`window`: how far back a rate looks; `matcher`: what every selector has, or nothing."""

    window: str
    matcher: str = ""

    def series(self, name: str, where: str = "") -> str:
        matchers = ",".join(filter(None, (self.matcher, where)))
        return f"pdserve_{name}{{{matchers}}}" if matchers else f"pdserve_{name}"

    def total(self, name: str, by: str = "", where: str = "") -> str:
        """Of a gauge, the sum."""
        return f"sum{_by(by)}({self.series(name, where)})"

    def rate(self, name: str, by: str = "", where: str = "") -> str:
        """Of a counter, per second."""
        return f"sum{_by(by)}(rate({self.series(name, where)}[{self.window}]))"

    def increase(self, name: str, by: str = "", where: str = "") -> str:
        """Of a counter, in one window."""
        return f"sum{_by(by)}(increase({self.series(name, where)}[{self.window}]))"

    def share(self, part: str, whole: str, by: str = "", part_where: str = "", whole_where: str = "") -> str:
        """Of two counters, of what came in one window; no number when nothing came."""
        return f"{self.rate(part, by, part_where)} / {self.rate(whole, by, whole_where)}"

    def mean(self, name: str, by: str = "", where: str = "") -> str:
        """Of what a histogram saw."""
        return self.share(f"{name}_sum", f"{name}_count", by, where, where)

    def quantile(self, share: float, name: str, by: str = "", where: str = "") -> str:
        """Of what a histogram saw."""
        groups = f"le, {by}" if by else "le"
        return f"histogram_quantile({share:g}, {self.rate(f'{name}_bucket', groups, where)})"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
