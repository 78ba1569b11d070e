from rpc import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("since", "newest_s")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_S_FIELD_NUMBER: _ClassVar[int]
    since: int
    newest_s: float
    def __init__(self, since: _Optional[int] = ..., newest_s: _Optional[float] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("source", "request_ids", "steps", "handoffs", "leases", "courses")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    COURSES_FIELD_NUMBER: _ClassVar[int]
    source: Source
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    handoffs: _containers.RepeatedCompositeFieldContainer[Handoff]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    courses: _containers.RepeatedCompositeFieldContainer[Course]
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., request_ids: _Optional[_Iterable[str]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., handoffs: _Optional[_Iterable[_Union[Handoff, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., courses: _Optional[_Iterable[_Union[Course, _Mapping]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "role", "incarnation", "unix_at_zero", "next", "num_lost", "capacity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UNIX_AT_ZERO_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: _worker_pb2.Role
    incarnation: str
    unix_at_zero: float
    next: int
    num_lost: int
    capacity: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[_worker_pb2.Role, str]] = ..., incarnation: _Optional[str] = ..., unix_at_zero: _Optional[float] = ..., next: _Optional[int] = ..., num_lost: _Optional[int] = ..., capacity: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("started_at", "duration_s", "chunks", "decodes", "admissions", "swapped_out", "dropped", "endings", "num_blocks_swapped_out", "num_blocks_swapped_in", "num_running", "num_waiting", "num_blocks_free", "num_blocks_used", "num_blocks_cached", "num_blocks_leased")
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    DECODES_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    ENDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_SWAPPED_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_SWAPPED_IN_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_LEASED_FIELD_NUMBER: _ClassVar[int]
    started_at: float
    duration_s: float
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    decodes: _containers.RepeatedScalarFieldContainer[int]
    admissions: _containers.RepeatedCompositeFieldContainer[Admission]
    swapped_out: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    endings: _containers.RepeatedCompositeFieldContainer[Ending]
    num_blocks_swapped_out: int
    num_blocks_swapped_in: int
    num_running: int
    num_waiting: int
    num_blocks_free: int
    num_blocks_used: int
    num_blocks_cached: int
    num_blocks_leased: int
    def __init__(self, started_at: _Optional[float] = ..., duration_s: _Optional[float] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., decodes: _Optional[_Iterable[int]] = ..., admissions: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., swapped_out: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[int]] = ..., endings: _Optional[_Iterable[_Union[Ending, _Mapping]]] = ..., num_blocks_swapped_out: _Optional[int] = ..., num_blocks_swapped_in: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_blocks_free: _Optional[int] = ..., num_blocks_used: _Optional[int] = ..., num_blocks_cached: _Optional[int] = ..., num_blocks_leased: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("request", "start", "num_tokens")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request: int
    start: int
    num_tokens: int
    def __init__(self, request: _Optional[int] = ..., start: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("request", "arrived_at", "num_prompt", "num_cached", "receives")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AT_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    RECEIVES_FIELD_NUMBER: _ClassVar[int]
    request: int
    arrived_at: float
    num_prompt: int
    num_cached: int
    receives: bool
    def __init__(self, request: _Optional[int] = ..., arrived_at: _Optional[float] = ..., num_prompt: _Optional[int] = ..., num_cached: _Optional[int] = ..., receives: _Optional[bool] = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ("request", "reason")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request: int
    reason: str
    def __init__(self, request: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Handoff(_message.Message):
    __slots__ = ("request", "ticket", "source", "started_at", "ended_at", "failure", "stages", "reads", "num_bytes", "num_tokens", "transport")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    request: int
    ticket: _worker_pb2.Ticket
    source: str
    started_at: float
    ended_at: float
    failure: str
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    reads: _containers.RepeatedCompositeFieldContainer[Span]
    num_bytes: int
    num_tokens: int
    transport: str
    def __init__(self, request: _Optional[int] = ..., ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., source: _Optional[str] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., failure: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., num_bytes: _Optional[int] = ..., num_tokens: _Optional[int] = ..., transport: _Optional[str] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("name", "duration_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    duration_s: float
    def __init__(self, name: _Optional[str] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("started_at", "ended_at")
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    started_at: float
    ended_at: float
    def __init__(self, started_at: _Optional[float] = ..., ended_at: _Optional[float] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("request", "ticket", "opened_at", "ended_at", "failure")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    request: int
    ticket: _worker_pb2.Ticket
    opened_at: float
    ended_at: float
    failure: str
    def __init__(self, request: _Optional[int] = ..., ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., opened_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., failure: _Optional[str] = ...) -> None: ...

class Course(_message.Message):
    __slots__ = ("request", "admitted_at", "dispatched_at", "first_token_at", "known_until", "outcome", "prefill_worker", "decode_worker", "prompt_tokens", "completion_tokens", "num_attempts")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_AT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_AT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_UNTIL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    request: int
    admitted_at: float
    dispatched_at: float
    first_token_at: float
    known_until: float
    outcome: str
    prefill_worker: str
    decode_worker: str
    prompt_tokens: int
    completion_tokens: int
    num_attempts: int
    def __init__(self, request: _Optional[int] = ..., admitted_at: _Optional[float] = ..., dispatched_at: _Optional[float] = ..., first_token_at: _Optional[float] = ..., known_until: _Optional[float] = ..., outcome: _Optional[str] = ..., prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., num_attempts: _Optional[int] = ...) -> None: ...
