"""A client: a connection for each request, on threads, and kept-alive connections beside, until its standard input ends. Runs on a host
of the test.

Prints one JSON document: requests, failures, the longest pause between two answers and the longest request in ms, which servers
answered, and the first errors; under `kept` the same of the kept-alive connections, with the time of each failure.
"""

import collections
import http.client
import json
import socket
import sys
import threading
import time

ADDRESS, PORT = sys.argv[1], int(sys.argv[2])
THREADS, KEPT = int(sys.argv[3]), int((sys.argv[4:] or ["0"])[0])
PAUSE_S, TIMEOUT_S, ERRORS_KEPT = 0.01, 10, 50

stopping = threading.Event()
lock = threading.Lock()


class Counts:
    """What one kind of load has seen."""

    def __init__(self):
        self.requests, self.pause_ms, self.answered_at = 0, 0.0, time.monotonic()
        self.longest_ms = 0.0
        self.servers, self.errors = collections.Counter(), []

    def answered(self, begun, body):
        now, took = time.monotonic(), time.time() - begun
        with lock:
            self.requests += 1
            self.servers[body.strip()] += 1
            self.longest_ms = max(self.longest_ms, took * 1000)
            self.pause_ms, self.answered_at = max(self.pause_ms, (now - self.answered_at) * 1000), now

    def failed(self, begun, error):
        """`begun` and the present in Unix seconds."""
        with lock:
            self.requests += 1
            self.errors.append({"from": begun, "to": time.time(), "error": f"{type(error).__name__} {error}"})

    def report(self):
        return {
            "requests": self.requests,
            "failures": len(self.errors),
            "pause_ms": round(self.pause_ms),
            "longest_ms": round(self.longest_ms),
            "servers": self.servers,
            "errors": self.errors[:ERRORS_KEPT],
        }


def request():
    """Returns the body of one answer, from a connection of its own."""
    with socket.create_connection((ADDRESS, PORT), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0] or not body:
        raise OSError(f"answer {answer[:60]!r}")
    return body.decode()


def single(counts):
    while not stopping.is_set():
        begun = time.time()
        try:
            counts.answered(begun, request())
        except OSError as error:
            counts.failed(begun, error)
        stopping.wait(PAUSE_S)


def kept_alive(counts):
    """Requests on one connection, until the server says in an answer that it closes it, or it fails."""
    connection = http.client.HTTPConnection(ADDRESS, PORT, timeout=TIMEOUT_S)
    while not stopping.is_set():
        begun = time.time()
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.status != 200:
                raise OSError(f"status {answer.status}")
            counts.answered(begun, body)
        except (OSError, http.client.HTTPException) as error:
            counts.failed(begun, error)
            connection.close()
        stopping.wait(PAUSE_S * 10)


singles, kept = Counts(), Counts()
threads = [threading.Thread(target=single, args=(singles,)) for _ in range(THREADS)]
threads += [threading.Thread(target=kept_alive, args=(kept,)) for _ in range(KEPT)]
for thread in threads:
    thread.start()
print("started", flush=True)
sys.stdin.read()
stopping.set()
for thread in threads:
    thread.join()
print(json.dumps({**singles.report(), "kept": kept.report()}))
