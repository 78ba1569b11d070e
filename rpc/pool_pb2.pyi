from rpc import peer_pb2 as _peer_pb2
from rpc import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LookupRequest(_message.Message):
    __slots__ = ("reader", "keys")
    READER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    reader: _worker_pb2.Ticket
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, reader: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FoundBlock(_message.Message):
    __slots__ = ("place", "block")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    place: int
    block: _peer_pb2.BlockRef
    def __init__(self, place: _Optional[int] = ..., block: _Optional[_Union[_peer_pb2.BlockRef, _Mapping]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: _containers.RepeatedCompositeFieldContainer[FoundBlock]
    def __init__(self, found: _Optional[_Iterable[_Union[FoundBlock, _Mapping]]] = ...) -> None: ...

class PoolCommitRequest(_message.Message):
    __slots__ = ("reader", "keys", "blocks")
    READER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    reader: _worker_pb2.Ticket
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    blocks: _containers.RepeatedCompositeFieldContainer[_peer_pb2.BlockRef]
    def __init__(self, reader: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., blocks: _Optional[_Iterable[_Union[_peer_pb2.BlockRef, _Mapping]]] = ...) -> None: ...

class PoolCommitResponse(_message.Message):
    __slots__ = ("valid",)
    VALID_FIELD_NUMBER: _ClassVar[int]
    valid: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, valid: _Optional[_Iterable[bool]] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("incarnation", "address", "ticket", "keys", "blocks")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    address: str
    ticket: _worker_pb2.Ticket
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    blocks: _containers.RepeatedCompositeFieldContainer[_peer_pb2.BlockRef]
    def __init__(self, incarnation: _Optional[str] = ..., address: _Optional[str] = ..., ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., blocks: _Optional[_Iterable[_Union[_peer_pb2.BlockRef, _Mapping]]] = ...) -> None: ...

class OfferResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, held: _Optional[_Iterable[bool]] = ...) -> None: ...

class CommitOfferRequest(_message.Message):
    __slots__ = ("ticket", "blocks")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ticket: _worker_pb2.Ticket
    blocks: _containers.RepeatedCompositeFieldContainer[_peer_pb2.BlockRef]
    def __init__(self, ticket: _Optional[_Union[_worker_pb2.Ticket, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[_peer_pb2.BlockRef, _Mapping]]] = ...) -> None: ...

class CommitOfferResponse(_message.Message):
    __slots__ = ("valid",)
    VALID_FIELD_NUMBER: _ClassVar[int]
    valid: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, valid: _Optional[_Iterable[bool]] = ...) -> None: ...
