"""Serves the folder WWW, and digests what is posted: an application for gunicorn."""

import hashlib
import os


def application(environ, start_response):
    """One request."""
    if environ["REQUEST_METHOD"] == "GET":
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
