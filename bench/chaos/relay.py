"""A TCP relay between two ends of a link, which can be cut or stalled and mended, and may forget idle connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Connection:
    """Forgotten once nothing has passed for `idle_s`: then both ends think it lives, and nothing arrives any more."""

    idle_s: float | None
    used_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    forgotten: bool = False

    def passes(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self.idle_s is not None and now - self.used_at > self.idle_s:
            self.forgotten = True
        self.used_at = now
        return not self.forgotten


class Relay:
    """Maintains every connection through it.

    While it is cut, new ones are refused and old ones are gone; while it is stalled nothing passes or gets lost.
    """

    def __init__(self, host: str, port: int, idle_s: float | None = None) -> None:
        self._target = (host, port)
        self._idle_s = idle_s
        self._connections: list[Connection] = []  # all that there ever were
        self._writers: set[asyncio.StreamWriter] = set()
        self._accepted: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0

    @property
    def num_connections(self) -> int:
        """That there ever were."""
        return len(self._connections)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def forget_all(self) -> None:
        """The connections that there are, as if they had been idle for too long."""
        for connection in self._connections:
            connection.forgotten = True

    def stall(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        """Ends a stall: what waits goes on, where both ends are still there."""
        self._flows.set()

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        """For good; nothing of it runs any more."""
        await self.cut()
        self.flow()
        await asyncio.gather(*self._accepted, return_exceptions=True)

    async def mend(self) -> None:
        """On the same port."""
        await self.start()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._accept(reader, writer))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()  # nobody listens there: as if nobody listened here
            return
        self._writers |= {writer, far_writer}
        connection = Connection(self._idle_s)
        self._connections.append(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection, reader, far_writer))
                group.create_task(self._pump(connection, far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _pump(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                if connection.passes():
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
