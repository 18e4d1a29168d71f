"""
``python -m bench.relay PORT``: passes bytes between clients and an upstream on asyncio, and reads nothing of them.

It is the least that a proxy in Python can do, and so the floor under the tap: two protocols for each connection, one
``write`` for each piece that comes. Prints its port.
"""

import asyncio
import gc
import sys
from functools import partial


class _End(asyncio.Protocol):
    """One end of a connection: what comes in goes out at the other."""

    transport: asyncio.Transport
    other: "_End | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class _Client(_End):
    """The end that asked; nothing is read of it until the other one is there."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self.other = await loop.create_connection(_End, "127.0.0.1", self._upstream)
        self.other.other = self
        self.transport.resume_reading()


async def _serve(upstream: int) -> None:
    server = await asyncio.get_running_loop().create_server(partial(_Client, upstream), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.collect()
    gc.freeze()  # as serve does
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
