"""Which requests a worker takes: the role and its epoch decide the kind.

Draining and failing end it for good, a stuck engine for as long as it is stuck.
"""

from __future__ import annotations

from cluster.request_stream import Identity
from cluster.roles import ROLES
from cluster.worker_spec import WorkerSpec
from engine.block_hash import HashContext
from rpc import worker_pb2


class Admission:
    """Maintains whether the worker admits; closed until it serves, and again when it leaves."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.is_open = False
        self.is_stuck = False  # the engine does not turn
        self._spec = spec
        self._role_epoch = spec.role_epoch

    @property
    def admits(self) -> bool:
        return self.is_open and not self.is_stuck

    def identity(self, max_model_len: int, hash_context: HashContext) -> Identity:
        return Identity(self._spec.incarnation, ROLES[self._spec.role], self._role_epoch, max_model_len, hash_context)

    def refusal_of_prefill(self, role_epoch: int) -> worker_pb2.FailureCode | None:
        """None, or why a prompt of that role epoch is not taken."""
        return self._refusal(role_epoch, self._spec.role == "prefill")

    def refusal_of_decode(self, role_epoch: int) -> worker_pb2.FailureCode | None:
        return self._refusal(role_epoch, self._spec.role != "prefill")

    def _refusal(self, role_epoch: int, has_role: bool) -> worker_pb2.FailureCode | None:
        if not has_role or role_epoch != self._role_epoch:
            return worker_pb2.FAILURE_ROLE_CHANGED
        return None if self.admits else worker_pb2.FAILURE_DRAINING
