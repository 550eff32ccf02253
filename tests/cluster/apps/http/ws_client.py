"""A WebSocket client by the library websockets: 50 connections at once, text, bytes up to 1 MiB, pings. Arguments: URL CA"""
import asyncio
import os
import ssl
import sys

import websockets

url, ca = sys.argv[1:]
context = ssl.create_default_context(cafile=ca) if url.startswith("wss") else None


async def one(at):
    async with websockets.connect(url, ssl=context, max_size=1 << 24) as peer:
        for message in ("", "text", "ä" * 1000, os.urandom(1), os.urandom(65536), os.urandom(1 << 20 if at % 10 == 0 else 1000)):
            await peer.send(message)
            assert await peer.recv() == message
        parts = [os.urandom(5000) for _ in range(5)]
        await peer.send(parts)
        assert await peer.recv() == b"".join(parts)
        await asyncio.wait_for(await peer.ping(), 20)
    assert peer.close_code == 1000, peer.close_code
    return 7


async def main():
    messages = await asyncio.gather(*map(one, range(50)))
    print(f"{len(messages)} connections, {sum(messages)} messages, 0 failed")


asyncio.run(asyncio.wait_for(main(), 100))
