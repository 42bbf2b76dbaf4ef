"""The socket of the server."""

import asyncio
import socket

from equipoise.production.server.app import bound_socket


def test_responses_are_sent_at_once_and_do_not_wait_for_acknowledgements() -> None:
    """asyncio sets TCP_NODELAY on a connection only if the listening socket names its protocol."""
    found: list[int] = []

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect() -> None:
        with bound_socket("127.0.0.1", 0) as bound:
            async with await asyncio.start_server(accepted, sock=bound):
                reader, writer = await asyncio.open_connection(*bound.getsockname())
                await reader.read()
                writer.close()
                await writer.wait_closed()

    asyncio.run(connect())
    assert found == [1]
