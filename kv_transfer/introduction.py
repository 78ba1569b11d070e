"""What two processes check of each other before one reads the other's KV: who it is, and that they could share any.

Peers, pool nodes and those that offer to nodes all introduce themselves in this way. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from kv_transfer.messages import FailureReason, HandoffError, PeerInfo
from kv_transfer.transport import Transport


def admit(me: PeerInfo, caller: PeerInfo, meant: str) -> PeerInfo:
    """`me`, in answer to a caller that means to reach the incarnation `meant`. Raises HandoffError."""
    if meant != me.incarnation:
        raise HandoffError(FailureReason.PEER_UNAVAILABLE, f"this is {me.incarnation}, not {meant}")
    _check_compatible(me, caller, me.incarnation)
    return me


def choose_transport(
    me: PeerInfo, theirs: PeerInfo, meant: str, transports: Mapping[str, Transport], name: str = ""
) -> tuple[Transport, bytes]:
    """What to read with from `meant`, who answered with `theirs`, and what that transport's `connect` needs.

    `transports`: ours, by name, the preferred one first; `name`: only this one. Raises HandoffError.
    """
    if theirs.incarnation != meant:
        raise HandoffError(FailureReason.PEER_UNAVAILABLE, f"{theirs.incarnation} answered instead of {meant}")
    _check_compatible(me, theirs, meant)
    offered = {info.name: info.metadata for info in theirs.transports}
    for known, transport in transports.items():
        if known in offered and name in ("", known):
            return transport, offered[known]
    wanted = name or " or ".join(transports)
    detail = f"no common transport: {wanted} is wanted here, {meant} has {', '.join(offered) or 'none'}"
    raise HandoffError(FailureReason.INCOMPATIBLE, detail)


def _check_compatible(me: PeerInfo, other: PeerInfo, peer: str) -> None:
    mismatch = me.compatibility.mismatch(other.compatibility)
    if mismatch is not None:
        raise HandoffError(FailureReason.INCOMPATIBLE, f"{peer}: {mismatch}")
