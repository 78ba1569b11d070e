"""What a worker exports while it holds anything; at its baseline each of these is zero."""

from __future__ import annotations

Gauge = tuple[str, dict[str, str]]  # name and labels

BUSY: tuple[Gauge, ...] = (
    ("pdserve_num_requests_running", {}),
    ("pdserve_num_requests_waiting", {}),
    ("pdserve_kv_blocks", {"state": "used"}),
    ("pdserve_kv_blocks", {"state": "leased"}),
    ("pdserve_kv_leases_active", {}),
    ("pdserve_staging_slots", {"state": "busy"}),
)
IN_DOUBT: Gauge = ("pdserve_staging_slots", {"state": "quarantined"})  # lasts longer than what a worker does
