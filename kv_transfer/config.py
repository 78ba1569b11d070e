"""The hand-off's settings: every deadline, the staging ring and UCX's transports, validated once, at the edge.

Each wait ends at the earlier of the request's deadline and the cap given here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MIB = 1024 * 1024
TransportName = Literal["nixl", "nccl", "gloo"]
Transports = Literal["auto"] | tuple[TransportName, ...]
ONE_VALUE = r"^[^,=\s]+$"  # NIXL cuts UCX's settings at commas


class TransferConfig(BaseModel):
    """One worker's part in hand-offs, in either role."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transports: Transports = "auto"  # by name, the preferred one first; auto: what the machine offers
    ucx_tls: str | None = Field(None, pattern=ONE_VALUE)  # as in "tcp"; None: UCX chooses, shared memory on one node
    ucx_net_devices: str | None = Field(None, pattern=ONE_VALUE)  # as in "lo", which listens nowhere else; None: all
    staging_slots: int = Field(8, ge=1)
    staging_slot_bytes: int = Field(8 * MIB, ge=1)  # bounds how long one read blocks the transport's thread
    max_quarantined_slots: int = Field(4, ge=0)  # more than these in doubt, and the worker drains and restarts
    layer_ranges: int = Field(4, ge=1)  # a prompt's last chunk is announced in so many; 1: when it is done
    reads_in_flight: int = Field(2, ge=1)  # of one hand-off: one is copied out while the next is read

    handshake_timeout_s: float = Field(5.0, gt=0)
    reserve_timeout_s: float = Field(30.0, gt=0)  # for KV blocks, and for a staging slot
    open_timeout_s: float = Field(10.0, gt=0)  # P's wait for the Open of a finished prefill, or the prefill of an Open
    lease_s: float = Field(30.0, gt=0)
    renew_every_s: float = Field(5.0, gt=0)
    transfer_timeout_s: float = Field(5.0, gt=0)  # of one read; longer if its bytes need more
    in_doubt_s: float = Field(150.0, ge=0)  # nothing more is read so long where a read did not end; TCP waits up to 120
    min_bytes_per_s: float = Field(0.1e9, gt=0)
    verdict_timeout_s: float = Field(5.0, gt=0)
    silent_peer_s: float = Field(10.0, gt=0)
    idle_peer_s: float = Field(600.0, gt=0)  # a peer that nothing was read from for so long is forgotten
    tombstone_s: float = Field(600.0, gt=0)  # P remembers an ended session so long
    max_tombstones: int = Field(10_000, ge=1)

    pool_lookup_timeout_s: float = Field(0.5, gt=0)  # for a pool node's answer: a slower one counts as a miss
    pool_read_timeout_s: float = Field(2.0, gt=0)  # of one prompt's blocks from one node; longer if the bytes need more
    pool_avoid_s: float = Field(3.0, gt=0)  # a node that failed is left alone so long
    pool_offer_timeout_s: float = Field(5.0, gt=0)  # for the pool to take computed blocks; later ones are not in it
    pool_offers_in_flight: int = Field(4, ge=1)  # of one worker

    def read_timeout_s(self, num_bytes: int) -> float:
        return max(self.transfer_timeout_s, num_bytes / self.min_bytes_per_s)

    @field_validator("transports")
    @classmethod
    def _once_each(cls, transports: Transports) -> Transports:
        if transports != "auto" and (not transports or len(set(transports)) < len(transports)):
            raise ValueError("name each transport once, as in [nccl, nixl], or say auto")
        return transports

    @model_validator(mode="after")
    def _consistent(self) -> TransferConfig:
        if self.max_quarantined_slots >= self.staging_slots:
            raise ValueError(
                f"max_quarantined_slots ({self.max_quarantined_slots}) must be below staging_slots "
                f"({self.staging_slots}): else all slots can be in doubt and the worker is never replaced"
            )
        if self.renew_every_s >= self.lease_s:
            raise ValueError(
                f"renew_every_s ({self.renew_every_s:g}) must be below lease_s ({self.lease_s:g}): "
                "else a lease ends between two renewals"
            )
        if self.renew_every_s >= self.silent_peer_s:
            raise ValueError(
                f"renew_every_s ({self.renew_every_s:g}) must be below silent_peer_s ({self.silent_peer_s:g}): "
                "a renewal is how a living peer is heard"
            )
        longest = (
            self.handshake_timeout_s
            + self.reserve_timeout_s
            + self.open_timeout_s
            + self.lease_s
            + self.verdict_timeout_s
            + self.silent_peer_s
        )
        if self.tombstone_s < longest:
            raise ValueError(
                f"tombstone_s ({self.tombstone_s:g}) must be at least {longest:g}, the sum of the deadlines: "
                "else a late message could revive a session that has ended"
            )
        return self
