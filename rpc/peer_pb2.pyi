from rpc import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Compatibility(_message.Message):
    __slots__ = ("protocol_version", "model_fingerprint", "kv_dtype", "block_size", "num_layers", "num_kv_heads", "head_dim", "tensor_parallel_size")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_fingerprint: str
    kv_dtype: str
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    tensor_parallel_size: int
    def __init__(self, protocol_version: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., block_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ...) -> None: ...

class TransportInfo(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("incarnation", "compatibility", "peer_incarnation", "transports")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    PEER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    compatibility: Compatibility
    peer_incarnation: str
    transports: _containers.RepeatedCompositeFieldContainer[TransportInfo]
    def __init__(self, incarnation: _Optional[str] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., peer_incarnation: _Optional[str] = ..., transports: _Optional[_Iterable[_Union[TransportInfo, _Mapping]]] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("incarnation", "compatibility", "transports")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    compatibility: Compatibility
    transports: _containers.RepeatedCompositeFieldContainer[TransportInfo]
    def __init__(self, incarnation: _Optional[str] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., transports: _Optional[_Iterable[_Union[TransportInfo, _Mapping]]] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("ticket", "have_tokens")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    HAVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ticket: _worker_pb2.Ticket
    have_tokens: int
    def __init__(self, ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., have_tokens: _Optional[int] = ...) -> None: ...

class BlockRef(_message.Message):
    __slots__ = ("block", "generation")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    block: int
    generation: int
    def __init__(self, block: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("chunk", "done", "ended")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    chunk: ChunkReady
    done: PrefillDone
    ended: SessionEnded
    def __init__(self, chunk: _Optional[_Union[ChunkReady, _Mapping]] = ..., done: _Optional[_Union[PrefillDone, _Mapping]] = ..., ended: _Optional[_Union[SessionEnded, _Mapping]] = ...) -> None: ...

class ChunkReady(_message.Message):
    __slots__ = ("sequence", "start", "end", "blocks", "layers")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    start: int
    end: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockRef]
    layers: LayerRange
    def __init__(self, sequence: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockRef, _Mapping]]] = ..., layers: _Optional[_Union[LayerRange, _Mapping]] = ...) -> None: ...

class LayerRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class PrefillDone(_message.Message):
    __slots__ = ("tail", "first_token", "token_hash", "num_tokens", "cached_tokens", "first_logprobs")
    TAIL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_HASH_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    tail: ChunkReady
    first_token: int
    token_hash: bytes
    num_tokens: int
    cached_tokens: int
    first_logprobs: _worker_pb2.TokenLogprobs
    def __init__(self, tail: _Optional[_Union[ChunkReady, _Mapping]] = ..., first_token: _Optional[int] = ..., token_hash: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., first_logprobs: _Optional[_Union[_worker_pb2.TokenLogprobs, _Mapping]] = ...) -> None: ...

class SessionEnded(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    detail: str
    def __init__(self, reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("tickets",)
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Ticket]
    def __init__(self, tickets: _Optional[_Iterable[_Union[_worker_pb2.Ticket, _Mapping]]] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("alive",)
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    alive: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, alive: _Optional[_Iterable[bool]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("ticket", "blocks", "transport")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ticket: _worker_pb2.Ticket
    blocks: _containers.RepeatedCompositeFieldContainer[BlockRef]
    transport: str
    def __init__(self, ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[BlockRef, _Mapping]]] = ..., transport: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("valid",)
    VALID_FIELD_NUMBER: _ClassVar[int]
    valid: bool
    def __init__(self, valid: _Optional[bool] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: _worker_pb2.Ticket
    def __init__(self, ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("transport", "communicator", "reader", "source", "rendezvous")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    transport: str
    communicator: bytes
    reader: str
    source: str
    rendezvous: bytes
    def __init__(self, transport: _Optional[str] = ..., communicator: _Optional[bytes] = ..., reader: _Optional[str] = ..., source: _Optional[str] = ..., rendezvous: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("transport", "communicator", "sequence", "blocks", "part_start", "part_end")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PART_START_FIELD_NUMBER: _ClassVar[int]
    PART_END_FIELD_NUMBER: _ClassVar[int]
    transport: str
    communicator: bytes
    sequence: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    part_start: int
    part_end: int
    def __init__(self, transport: _Optional[str] = ..., communicator: _Optional[bytes] = ..., sequence: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., part_start: _Optional[int] = ..., part_end: _Optional[int] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
