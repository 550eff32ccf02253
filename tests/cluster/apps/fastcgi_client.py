"""A FastCGI client: POSTs bodies of 1 B to 1 MiB to a script and compares the answer with their SHA-256.

fastcgi_client.py ADDRESS PORT SCRIPT CONNECTIONS ROUNDS"""

import hashlib
import os
import socket
import struct
import sys
import threading

BEGIN, END, PARAMS, STDIN, STDOUT, STDERR = 1, 3, 4, 5, 6, 7
SIZES = [1, 1000, 65_535, 65_536, 1 << 20]
failures = []


def record(kind, content):
    return struct.pack(">BBHHBB", 1, kind, 1, len(content), 0, 0) + content


def stream(kind, content):
    parts = [content[at : at + 65_535] for at in range(0, len(content), 65_535)]
    return b"".join(record(kind, part) for part in parts) + record(kind, b"")


def parameter(name, value):
    return struct.pack(">II", len(name) | 1 << 31, len(value) | 1 << 31) + name + value


def request(address, port, script, body):
    values = {
        "SCRIPT_FILENAME": script, "REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/octet-stream", "CONTENT_LENGTH": str(len(body)),
        "QUERY_STRING": "", "SCRIPT_NAME": "/digest.php", "REQUEST_URI": "/digest.php", "SERVER_PROTOCOL": "HTTP/1.1",
    }
    parameters = b"".join(parameter(name.encode(), value.encode()) for name, value in values.items())
    with socket.create_connection((address, port), 20) as connection, connection.makefile("rb") as answer:
        connection.sendall(record(BEGIN, struct.pack(">HB5x", 1, 0)) + stream(PARAMS, parameters) + stream(STDIN, body))
        output = b""
        while True:
            _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", answer.read(8))
            content = answer.read(length + padding)[:length]
            if kind == STDOUT:
                output += content
            elif kind == STDERR:
                raise ValueError(content)
            elif kind == END:
                return output.partition(b"\r\n\r\n")[2]


def client(address, port, script, rounds):
    try:
        for number in range(rounds):
            body = os.urandom(SIZES[number % len(SIZES)])
            got = request(address, port, script, body)
            if got != hashlib.sha256(body).hexdigest().encode():
                raise ValueError(f"{len(body)} bytes: {got[:80]!r}")
    except Exception as error:  # pylint: disable=broad-except
        failures.append(repr(error))


def main():
    address, port, script, connections, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    threads = [threading.Thread(target=client, args=(address, port, script, rounds)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"{connections * rounds} FastCGI requests")


main()
