"""An application of gunicorn that writes a line for each request it sees: the id that the proxy gave it."""
import os

LOG = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def application(environ, start_response):
    seen = environ.get("HTTP_X_REQUEST_ID", "-"), environ["REQUEST_METHOD"], environ["RAW_URI"]
    os.write(LOG, (" ".join(seen) + "\n").encode("latin-1"))
    try:
        while environ["wsgi.input"].read(65536):
            pass
    except OSError:
        pass
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]
