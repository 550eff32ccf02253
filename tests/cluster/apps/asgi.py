"""Serves the folder WWW, digests what is posted and refuses more than 32 MiB before it reads any: an application for uvicorn."""

import hashlib
import os

LONGEST = 32 << 20


async def answer(send, status, body):
    """One response."""
    headers = [(b"content-length", str(len(body)).encode())]
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def app(scope, receive, send):
    """One request, or the process's life."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["method"] == "GET":
        with open(os.path.join(os.environ["WWW"], os.path.basename(scope["path"])), "rb") as file:
            return await answer(send, 200, file.read())
    if int(dict(scope["headers"]).get(b"content-length", b"0")) > LONGEST:
        return await answer(send, 413, b"too long\n")
    hasher, more = hashlib.sha256(), True
    while more:
        message = await receive()
        hasher.update(message.get("body", b""))
        more = message.get("more_body", False)
    await answer(send, 200, hasher.hexdigest().encode())
