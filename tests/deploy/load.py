"""A client: a connection for each request, on threads, until its standard input ends. Runs on a host of the test.

Prints one JSON document: requests, failures, the longest pause between two answers in ms, who answered, and the first errors.
"""

import collections
import json
import socket
import sys
import threading
import time

ADDRESS, PORT, THREADS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PAUSE_S, TIMEOUT_S, ERRORS_KEPT = 0.01, 10, 20

stopping = threading.Event()
lock = threading.Lock()
servers, errors = collections.Counter(), []
requests, pause_ms, answered_at = 0, 0.0, time.monotonic()


def request():
    """Returns the body of one answer."""
    with socket.create_connection((ADDRESS, PORT), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0] or not body:
        raise OSError(f"answer {answer[:60]!r}")
    return body.decode()


def loop(begun):
    global requests, pause_ms, answered_at
    while not stopping.is_set():
        at = time.monotonic()
        try:
            body, error = request(), None
        except OSError as failure:
            body, error = "", failure
        now = time.monotonic()
        with lock:
            requests += 1
            if error is None:
                servers[body.strip()] += 1
                pause_ms, answered_at = max(pause_ms, (now - answered_at) * 1000), now
            else:
                errors.append(f"{at - begun:.2f} s, after {now - at:.2f} s: {type(error).__name__} {error}")
        stopping.wait(PAUSE_S)


threads = [threading.Thread(target=loop, args=(time.monotonic(),)) for _ in range(THREADS)]
for thread in threads:
    thread.start()
print("started", flush=True)
sys.stdin.read()
stopping.set()
for thread in threads:
    thread.join()
result = {"requests": requests, "failures": len(errors), "pause_ms": round(pause_ms), "servers": servers, "errors": errors[:ERRORS_KEPT]}
print(json.dumps(result))
