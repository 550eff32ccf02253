"""Uploads that a server refuses early: it answers and closes while most of the body is unread. Every answer must arrive whole.

refused_client.py ADDRESS PORT PATH STATUS COUNT: POSTs that announce 64 MiB and bring 256 KiB, then read to the end."""

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
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionResetError:
            return answer, "reset"
    return answer, "closed"


def complete(answer):
    """Returns whether an answer has the length that it announces."""
    head, end, body = answer.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return bool(end) and (not lengths or len(body) >= int(lengths[0]))


def main():
    address, port, path, status, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4].encode(), int(sys.argv[5])
    ends = {"closed": 0, "reset": 0}
    for number in range(count):
        answer, end = ask(address, port, path)
        if answer.split(b" ")[1:2] != [status] or not complete(answer):
            sys.exit(f"refusal {number + 1} of {count}: {len(answer)} bytes, then {end}: {answer[:80]!r}; {status.decode()} was expected")
        ends[end] += 1
    print(f"{count} early refusals ({ends['reset']} then reset)")


main()
