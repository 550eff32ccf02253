"""Asks again and again and compares digests: http_load.py ADDRESS PORT PATH SHA256 CONNECTIONS SECONDS.

A kept connection that the server closes between two answers is opened anew, as HTTP allows; all else is an error.
"""

import hashlib
import http.client
import sys
import threading
import time

ADDRESS, PORT, PATH, WANTED = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
CONNECTIONS, SECONDS = int(sys.argv[5]), float(sys.argv[6])
CLOSED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
END = time.monotonic() + SECONDS
answers, anew, errors = [0] * CONNECTIONS, [0] * CONNECTIONS, []


def ask(connection, at):
    """One answer, checked; whether the connection was a used one that turned out closed."""
    used = connection.sock is not None
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
    except CLOSED:
        connection.close()
        if used:
            return True
        raise
    body = answer.read()
    if answer.status != 200 or hashlib.sha256(body).hexdigest() != WANTED:
        raise ValueError(f"status {answer.status}, {len(body)} bytes, not what was asked for")
    answers[at] += 1
    return False


def client(at):
    """One connection after another."""
    connection = http.client.HTTPConnection(ADDRESS, PORT, timeout=10)
    while time.monotonic() < END and len(errors) < 5:
        try:
            anew[at] += ask(connection, at)
        except Exception as error:
            errors.append(f"after {answers[at]} answers: {type(error).__name__}: {error}")
            connection.close()


threads = [threading.Thread(target=client, args=(at,)) for at in range(CONNECTIONS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{sum(answers)} checked ones ({sum(anew)} connections made anew)")
for error in errors:
    print(error, file=sys.stderr)
sys.exit(bool(errors) or not all(answers))
