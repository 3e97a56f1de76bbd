"""What leaves on a real socket is what was queued, in order, large buffers between small ones."""

import asyncio
import os

from pulsar_txn.client.net.connection import LARGE_BUFFER, Connection
from pulsar_txn.client.net.runtime import AsyncioRuntime
from pulsar_txn.client.net.settings import Settings


async def test_small_and_large_buffers_leave_in_order():
    got, ended = bytearray(), asyncio.Event()

    async def serve(reader, writer):
        while data := await reader.read(LARGE_BUFFER):
            got.extend(data)
        ended.set()
        writer.close()  # since Python 3.12 a server waits for its connections when it closes

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        connection = await AsyncioRuntime().connect(
            lambda: Connection(AsyncioRuntime(), Settings(), "x"), "127.0.0.1", port, ssl_context=None, server_hostname=None
        )
        sent = b""
        for turn in range(12):
            buffers = [os.urandom(size) for size in (10, 2 * LARGE_BUFFER, 5, 200_000, LARGE_BUFFER, 1)]
            sent += b"".join(buffers)
            connection.write(buffers)
            if turn % 3 == 0:
                await asyncio.sleep(0)
        connection.close()
        async with asyncio.timeout(20):
            await ended.wait()
    assert bytes(got) == sent
