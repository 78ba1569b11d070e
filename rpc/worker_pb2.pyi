from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Protocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROTOCOL_UNSPECIFIED: _ClassVar[Protocol]
    PROTOCOL_VERSION: _ClassVar[Protocol]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_MIXED: _ClassVar[Role]
    ROLE_POOL: _ClassVar[Role]

class FailureCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_UNSPECIFIED: _ClassVar[FailureCode]
    FAILURE_INVALID: _ClassVar[FailureCode]
    FAILURE_ROLE_CHANGED: _ClassVar[FailureCode]
    FAILURE_DRAINING: _ClassVar[FailureCode]
    FAILURE_DEADLINE: _ClassVar[FailureCode]
    FAILURE_INTERNAL: _ClassVar[FailureCode]
    FAILURE_UNSAMPLED: _ClassVar[FailureCode]
PROTOCOL_UNSPECIFIED: Protocol
PROTOCOL_VERSION: Protocol
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_MIXED: Role
ROLE_POOL: Role
FAILURE_UNSPECIFIED: FailureCode
FAILURE_INVALID: FailureCode
FAILURE_ROLE_CHANGED: FailureCode
FAILURE_DRAINING: FailureCode
FAILURE_DEADLINE: FailureCode
FAILURE_INTERNAL: FailureCode
FAILURE_UNSAMPLED: FailureCode

class Hello(_message.Message):
    __slots__ = ("protocol_version", "proxy_incarnation", "worker_incarnation")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROXY_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    proxy_incarnation: str
    worker_incarnation: str
    def __init__(self, protocol_version: _Optional[int] = ..., proxy_incarnation: _Optional[str] = ..., worker_incarnation: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "worker_incarnation", "role", "role_epoch", "max_model_len", "model_fingerprint", "kv_dtype", "block_size")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker_incarnation: str
    role: Role
    role_epoch: int
    max_model_len: int
    model_fingerprint: str
    kv_dtype: str
    block_size: int
    def __init__(self, protocol_version: _Optional[int] = ..., worker_incarnation: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., role_epoch: _Optional[int] = ..., max_model_len: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., block_size: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_running", "num_waiting", "num_queued_tokens", "num_blocks", "num_free_blocks", "admitting", "stuck", "num_steps", "step_s", "num_prefill_tokens", "num_decode_tokens")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADMITTING_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_queued_tokens: int
    num_blocks: int
    num_free_blocks: int
    admitting: bool
    stuck: bool
    num_steps: int
    step_s: float
    num_prefill_tokens: int
    num_decode_tokens: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_queued_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., admitting: _Optional[bool] = ..., stuck: _Optional[bool] = ..., num_steps: _Optional[int] = ..., step_s: _Optional[float] = ..., num_prefill_tokens: _Optional[int] = ..., num_decode_tokens: _Optional[int] = ...) -> None: ...

class WatchCache(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class CacheUpdate(_message.Message):
    __slots__ = ("after", "through", "is_snapshot", "stored", "evicted")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    after: int
    through: int
    is_snapshot: bool
    stored: bytes
    evicted: bytes
    def __init__(self, after: _Optional[int] = ..., through: _Optional[int] = ..., is_snapshot: _Optional[bool] = ..., stored: _Optional[bytes] = ..., evicted: _Optional[bytes] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "num_logprobs", "grammar")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    min_tokens: int
    num_logprobs: int
    grammar: str
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., min_tokens: _Optional[int] = ..., num_logprobs: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenRequest(_message.Message):
    __slots__ = ("request_id", "prompt_ids", "output_ids", "sampling", "timeout_s", "priority", "cache_salt", "traceparent")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    timeout_s: float
    priority: int
    cache_salt: str
    traceparent: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., output_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., timeout_s: _Optional[float] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class StageTime(_message.Message):
    __slots__ = ("name", "duration_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    duration_s: float
    def __init__(self, name: _Optional[str] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("session", "attempt")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    attempt: int
    def __init__(self, session: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class PoolMember(_message.Message):
    __slots__ = ("name", "incarnation", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    address: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class PoolUse(_message.Message):
    __slots__ = ("members", "reads", "writes_back")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    WRITES_BACK_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[PoolMember]
    reads: bool
    writes_back: bool
    def __init__(self, members: _Optional[_Iterable[_Union[PoolMember, _Mapping]]] = ..., reads: _Optional[bool] = ..., writes_back: _Optional[bool] = ...) -> None: ...

class PrefillCommand(_message.Message):
    __slots__ = ("hello", "ping", "start", "abort", "watch_cache")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    WATCH_CACHE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    ping: Ping
    start: StartPrefill
    abort: AbortRequestCommand
    watch_cache: WatchCache
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., start: _Optional[_Union[StartPrefill, _Mapping]] = ..., abort: _Optional[_Union[AbortRequestCommand, _Mapping]] = ..., watch_cache: _Optional[_Union[WatchCache, _Mapping]] = ...) -> None: ...

class StartPrefill(_message.Message):
    __slots__ = ("request", "ticket", "role_epoch", "pool")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    request: TokenRequest
    ticket: Ticket
    role_epoch: int
    pool: PoolUse
    def __init__(self, request: _Optional[_Union[TokenRequest, _Mapping]] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ..., role_epoch: _Optional[int] = ..., pool: _Optional[_Union[PoolUse, _Mapping]] = ...) -> None: ...

class AbortRequestCommand(_message.Message):
    __slots__ = ("request_id", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class PrefillEvent(_message.Message):
    __slots__ = ("welcome", "load", "done", "failed", "cache")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    load: Load
    done: PrefillProgress
    failed: RequestFailed
    cache: CacheUpdate
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., done: _Optional[_Union[PrefillProgress, _Mapping]] = ..., failed: _Optional[_Union[RequestFailed, _Mapping]] = ..., cache: _Optional[_Union[CacheUpdate, _Mapping]] = ...) -> None: ...

class PrefillProgress(_message.Message):
    __slots__ = ("request_id", "attempt", "cached_tokens", "computed_tokens", "stages")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    cached_tokens: int
    computed_tokens: int
    stages: _containers.RepeatedCompositeFieldContainer[StageTime]
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageTime, _Mapping]]] = ...) -> None: ...

class DecodeCommand(_message.Message):
    __slots__ = ("hello", "ping", "start", "abort", "watch_cache")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    WATCH_CACHE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    ping: Ping
    start: StartDecode
    abort: AbortRequestCommand
    watch_cache: WatchCache
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., start: _Optional[_Union[StartDecode, _Mapping]] = ..., abort: _Optional[_Union[AbortRequestCommand, _Mapping]] = ..., watch_cache: _Optional[_Union[WatchCache, _Mapping]] = ...) -> None: ...

class KVSource(_message.Message):
    __slots__ = ("ticket", "address", "incarnation", "transport")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    address: str
    incarnation: str
    transport: str
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., address: _Optional[str] = ..., incarnation: _Optional[str] = ..., transport: _Optional[str] = ...) -> None: ...

class StartDecode(_message.Message):
    __slots__ = ("request", "attempt", "role_epoch", "source", "pool")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    request: TokenRequest
    attempt: int
    role_epoch: int
    source: KVSource
    pool: PoolUse
    def __init__(self, request: _Optional[_Union[TokenRequest, _Mapping]] = ..., attempt: _Optional[int] = ..., role_epoch: _Optional[int] = ..., source: _Optional[_Union[KVSource, _Mapping]] = ..., pool: _Optional[_Union[PoolUse, _Mapping]] = ...) -> None: ...

class DecodeEvent(_message.Message):
    __slots__ = ("welcome", "load", "tokens", "handoff_failed", "failed", "cache")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FAILED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    load: Load
    tokens: StepTokens
    handoff_failed: HandoffFailed
    failed: RequestFailed
    cache: CacheUpdate
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., tokens: _Optional[_Union[StepTokens, _Mapping]] = ..., handoff_failed: _Optional[_Union[HandoffFailed, _Mapping]] = ..., failed: _Optional[_Union[RequestFailed, _Mapping]] = ..., cache: _Optional[_Union[CacheUpdate, _Mapping]] = ...) -> None: ...

class StepTokens(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestTokens]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestTokens, _Mapping]]] = ...) -> None: ...

class RequestTokens(_message.Message):
    __slots__ = ("request_id", "attempt", "index", "ids", "finish_reason", "origin", "logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    index: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    origin: Origin
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., index: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("cached_tokens", "received_tokens", "computed_tokens", "prefill_cached_tokens", "stages")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    received_tokens: int
    computed_tokens: int
    prefill_cached_tokens: int
    stages: _containers.RepeatedCompositeFieldContainer[StageTime]
    def __init__(self, cached_tokens: _Optional[int] = ..., received_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., prefill_cached_tokens: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageTime, _Mapping]]] = ...) -> None: ...

class HandoffFailed(_message.Message):
    __slots__ = ("request_id", "attempt", "reason", "detail")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    reason: str
    detail: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class RequestFailed(_message.Message):
    __slots__ = ("request_id", "attempt", "code", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    code: FailureCode
    message: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., code: _Optional[_Union[FailureCode, str]] = ..., message: _Optional[str] = ...) -> None: ...
