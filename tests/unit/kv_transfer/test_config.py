"""Settings that contradict each other are refused by name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kv_transfer.config import TransferConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"renew_every_s": 40.0, "silent_peer_s": 50.0}, "renew_every_s .* must be below lease_s"),
        ({"renew_every_s": 10.0}, "renew_every_s .* must be below silent_peer_s"),
        ({"tombstone_s": 60.0}, "tombstone_s .* must be at least 90"),
        ({"max_quarantined_slots": 8}, r"max_quarantined_slots \(8\) must be below staging_slots \(8\)"),
        ({"ucx_tls": "tcp,shm"}, "ucx_tls"),
        ({"ucx_net_devices": ""}, "ucx_net_devices"),
        ({"staging_slots": 0}, "staging_slots"),
        ({"lease": 1}, "lease"),
    ],
)
def test_a_contradiction_is_named(fields: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TransferConfig.model_validate(fields)


def test_a_long_read_gets_more_time() -> None:
    config = TransferConfig()
    assert config.read_timeout_s(1) == 5.0
    assert config.read_timeout_s(1_000_000_000) == 10.0
