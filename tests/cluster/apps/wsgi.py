"""Serves the folder WWW, digests what is posted, refuses more than 32 MiB unread, and takes its time over /busy: an application for gunicorn."""

import hashlib
import os
import time

BUSY_S = 4
LONGEST = 32 << 20


def application(environ, start_response):
    """One request."""
    if int(environ.get("CONTENT_LENGTH") or 0) > LONGEST:
        start_response("413 Content Too Large", [("Content-Length", "9"), ("Connection", "close")])
        return [b"too long\n"]
    if environ["PATH_INFO"] == "/busy":
        with open(os.path.join(os.environ["WWW"], "is-busy"), "w"):
            time.sleep(BUSY_S)
        body = b"done"
    elif environ["REQUEST_METHOD"] == "GET":
        path = os.path.join(os.environ["WWW"], os.path.basename(environ["PATH_INFO"]))
        with open(path, "rb") as file:
            body = file.read()
    else:
        hasher = hashlib.sha256()
        while part := environ["wsgi.input"].read(1 << 16):
            hasher.update(part)
        body = hasher.hexdigest().encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
