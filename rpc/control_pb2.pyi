from rpc import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STARTING: _ClassVar[WorkerState]
    WORKER_READY: _ClassVar[WorkerState]
    WORKER_DRAINING: _ClassVar[WorkerState]
    WORKER_FAILED: _ClassVar[WorkerState]
WORKER_UNSPECIFIED: WorkerState
WORKER_STARTING: WorkerState
WORKER_READY: WorkerState
WORKER_DRAINING: WorkerState
WORKER_FAILED: WorkerState

class WatchRequest(_message.Message):
    __slots__ = ("protocol_version", "proxy_incarnation")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROXY_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    proxy_incarnation: str
    def __init__(self, protocol_version: _Optional[int] = ..., proxy_incarnation: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("worker", "incarnation", "role", "role_epoch", "state", "address", "metrics_address", "node", "transports", "group")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    role: _worker_pb2.Role
    role_epoch: int
    state: WorkerState
    address: str
    metrics_address: str
    node: str
    transports: _containers.RepeatedScalarFieldContainer[str]
    group: str
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., role: _Optional[_Union[_worker_pb2.Role, str]] = ..., role_epoch: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., address: _Optional[str] = ..., metrics_address: _Optional[str] = ..., node: _Optional[str] = ..., transports: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ...) -> None: ...

class Members(_message.Message):
    __slots__ = ("version", "controller_incarnation", "members", "pool_nodes", "traffic_every_s", "metrics_address")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POOL_NODES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    version: int
    controller_incarnation: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    pool_nodes: _containers.RepeatedCompositeFieldContainer[Member]
    traffic_every_s: float
    metrics_address: str
    def __init__(self, version: _Optional[int] = ..., controller_incarnation: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., pool_nodes: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., traffic_every_s: _Optional[float] = ..., metrics_address: _Optional[str] = ...) -> None: ...

class TrafficReport(_message.Message):
    __slots__ = ("proxy_incarnation", "span_s", "classes")
    PROXY_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SPAN_S_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    proxy_incarnation: str
    span_s: float
    classes: _containers.RepeatedCompositeFieldContainer[ClassTraffic]
    def __init__(self, proxy_incarnation: _Optional[str] = ..., span_s: _Optional[float] = ..., classes: _Optional[_Iterable[_Union[ClassTraffic, _Mapping]]] = ...) -> None: ...

class ClassTraffic(_message.Message):
    __slots__ = ("priority", "num_arrived", "num_refused", "num_prompt_tokens", "num_ended", "num_ended_prompt_tokens", "num_ended_prefill_tokens", "num_generated_tokens", "queue_s", "first_token_s", "per_token_s", "waiting_s")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_ARRIVED_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ENDED_FIELD_NUMBER: _ClassVar[int]
    NUM_ENDED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ENDED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    priority: str
    num_arrived: int
    num_refused: int
    num_prompt_tokens: int
    num_ended: int
    num_ended_prompt_tokens: int
    num_ended_prefill_tokens: int
    num_generated_tokens: int
    queue_s: _containers.RepeatedScalarFieldContainer[float]
    first_token_s: _containers.RepeatedScalarFieldContainer[float]
    per_token_s: _containers.RepeatedScalarFieldContainer[float]
    waiting_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, priority: _Optional[str] = ..., num_arrived: _Optional[int] = ..., num_refused: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_ended: _Optional[int] = ..., num_ended_prompt_tokens: _Optional[int] = ..., num_ended_prefill_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., queue_s: _Optional[_Iterable[float]] = ..., first_token_s: _Optional[_Iterable[float]] = ..., per_token_s: _Optional[_Iterable[float]] = ..., waiting_s: _Optional[_Iterable[float]] = ...) -> None: ...

class TrafficReportTaken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("protocol_version", "version", "model_name", "controller_incarnation", "uptime_s", "proxy_http_address", "proxy_grpc_address", "pid", "proxy_pid", "num_proxy_restarts", "proxy_last_error")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    PROXY_HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROXY_GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROXY_PID_FIELD_NUMBER: _ClassVar[int]
    NUM_PROXY_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PROXY_LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    version: str
    model_name: str
    controller_incarnation: str
    uptime_s: float
    proxy_http_address: str
    proxy_grpc_address: str
    pid: int
    proxy_pid: int
    num_proxy_restarts: int
    proxy_last_error: str
    def __init__(self, protocol_version: _Optional[int] = ..., version: _Optional[str] = ..., model_name: _Optional[str] = ..., controller_incarnation: _Optional[str] = ..., uptime_s: _Optional[float] = ..., proxy_http_address: _Optional[str] = ..., proxy_grpc_address: _Optional[str] = ..., pid: _Optional[int] = ..., proxy_pid: _Optional[int] = ..., num_proxy_restarts: _Optional[int] = ..., proxy_last_error: _Optional[str] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PoolLoad(_message.Message):
    __slots__ = ("role", "num_desired", "num_ready", "num_reporting", "num_running", "num_waiting", "num_queued_tokens", "kv_usage")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NUM_DESIRED_FIELD_NUMBER: _ClassVar[int]
    NUM_READY_FIELD_NUMBER: _ClassVar[int]
    NUM_REPORTING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    role: _worker_pb2.Role
    num_desired: int
    num_ready: int
    num_reporting: int
    num_running: int
    num_waiting: int
    num_queued_tokens: int
    kv_usage: float
    def __init__(self, role: _Optional[_Union[_worker_pb2.Role, str]] = ..., num_desired: _Optional[int] = ..., num_ready: _Optional[int] = ..., num_reporting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_queued_tokens: _Optional[int] = ..., kv_usage: _Optional[float] = ...) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolLoad]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolLoad, _Mapping]]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("member", "load", "pid", "kv_usage", "uptime_s", "num_restarts", "last_error")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    NUM_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    member: Member
    load: _worker_pb2.Load
    pid: int
    kv_usage: float
    uptime_s: float
    num_restarts: int
    last_error: str
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., load: _Optional[_Union[_worker_pb2.Load, _Mapping]] = ..., pid: _Optional[int] = ..., kv_usage: _Optional[float] = ..., uptime_s: _Optional[float] = ..., num_restarts: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "desired", "most")
    class DesiredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    desired: _containers.ScalarMap[str, int]
    most: _containers.ScalarMap[str, int]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., desired: _Optional[_Mapping[str, int]] = ..., most: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("role", "num_workers")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    role: _worker_pb2.Role
    num_workers: int
    def __init__(self, role: _Optional[_Union[_worker_pb2.Role, str]] = ..., num_workers: _Optional[int] = ...) -> None: ...

class ScaleResponse(_message.Message):
    __slots__ = ("previous",)
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    previous: int
    def __init__(self, previous: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker", "timeout_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    worker: str
    timeout_s: float
    def __init__(self, worker: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("num_aborted",)
    NUM_ABORTED_FIELD_NUMBER: _ClassVar[int]
    num_aborted: int
    def __init__(self, num_aborted: _Optional[int] = ...) -> None: ...

class SetRoleRequest(_message.Message):
    __slots__ = ("worker", "role", "expected_epoch", "timeout_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    worker: str
    role: _worker_pb2.Role
    expected_epoch: int
    timeout_s: float
    def __init__(self, worker: _Optional[str] = ..., role: _Optional[_Union[_worker_pb2.Role, str]] = ..., expected_epoch: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class SetRoleResponse(_message.Message):
    __slots__ = ("role_epoch",)
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    role_epoch: int
    def __init__(self, role_epoch: _Optional[int] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
