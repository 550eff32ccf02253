"""A WebSocket server by the library websockets that sends back what it gets. Argument: PORT"""
import asyncio
import sys

import websockets


async def echo(peer):
    async for message in peer:
        await peer.send(message)


async def main():
    async with websockets.serve(echo, "0.0.0.0", int(sys.argv[1]), max_size=1 << 24):
        await asyncio.Future()


asyncio.run(main())
