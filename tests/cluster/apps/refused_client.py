"""Uploads that a server refuses early: it answers and closes while most of the body is unread. Every answer must arrive whole.

refused_client.py ADDRESS PORT PATH STATUS COUNT: POSTs that announce 64 MiB and bring 256 KiB, then read the answer. A server may keep
its connection for seconds after that (nginx's lingering_close), so the client closes when the announced length has arrived."""

import socket
import sys

ANNOUNCED = 64 << 20
BROUGHT = 256 << 10


def ask(address, port, path):
    """Returns the answer, and how the connection ended."""
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/octet-stream\r\nContent-Length: {ANNOUNCED}\r\n\r\n"
    answer = b""
    with socket.create_connection((address, port), 10) as connection:
        connection.settimeout(10)
        try:
            connection.sendall(head.encode() + b"x" * BROUGHT)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has closed; what it said first is still to be read
        try:
            while missing(answer) != 0 and (part := connection.recv(1 << 16)):
                answer += part
        except ConnectionResetError:
            return answer, "reset"
    return answer, "answered"


def missing(answer):
    """Returns how many bytes an answer lacks of the length that it announces; None where it announces none."""
    head, end, body = answer.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(lengths[0]) - len(body) if end and lengths else None


def main():
    address, port, path, status, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4].encode(), int(sys.argv[5])
    for number in range(count):
        answer, end = ask(address, port, path)
        if answer.split(b" ")[1:2] != [status] or b"\r\n\r\n" not in answer or (missing(answer) or 0) > 0:
            sys.exit(f"refusal {number + 1} of {count}: {len(answer)} bytes, then {end}: {answer[:80]!r}; {status.decode()} was expected")
    print(f"{count} early refusals")


main()
