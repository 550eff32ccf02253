"""Serves a folder by asyncio's streams, and digests what is posted: asyncio_server.py PORT FOLDER."""

import asyncio
import hashlib
import os
import sys

PORT, FOLDER = int(sys.argv[1]), sys.argv[2]


def fetch(path):
    """Status and body of a file in the folder."""
    try:
        with open(os.path.join(FOLDER, os.path.basename(path)), "rb") as file:
            return b"200 OK", file.read()
    except OSError:
        return b"404 Not Found", b"no such file\n"


async def digest(reader, length):
    """SHA-256 of the next bytes."""
    hasher = hashlib.sha256()
    while length > 0:
        part = await reader.read(min(length, 1 << 16))
        if not part:
            break
        length -= len(part)
        hasher.update(part)
    return hasher.hexdigest().encode()


async def serve(reader, writer):
    """Requests of one connection, until it ends."""
    try:
        while line := await reader.readline():
            method, path, _ = line.decode().split()
            length, last = 0, False
            while (field := await reader.readline()).strip():
                name, _, value = field.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
                last |= name.lower() == b"connection" and value.strip().lower() == b"close"
            status, body = fetch(path) if method == "GET" else (b"200 OK", await digest(reader, length))
            end = b"Connection: close\r\n" if last else b""
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), end) + body)
            await writer.drain()
            if last:
                break
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main():
    """Serves for ever."""
    server = await asyncio.start_server(serve, "0.0.0.0", PORT)
    async with server:
        await server.serve_forever()


asyncio.run(main())
