"""Bulk senders and receivers of datagrams, beside zmq_flows.py: what the kernel's HTB is measured with.

udp_flows.py send HOST PORT SIZE MBPS SECONDS
udp_flows.py receive PORT SECONDS   prints, as JSON, what arrived in each tenth of a second of the machine's clock
"""

import json
import socket
import struct
import sys
import time

HEAD = struct.Struct("!QQ")
WINDOW_NS = 100_000_000
SO_SNDBUFFORCE = 32


def send(host, port, size, mbps, seconds):
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # What waits, waits in the class's queue; the socket's buffer is no bound.
    out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 16 << 20)
    out.setblocking(False)
    out.connect((host, port))
    padding = b"x" * (size - HEAD.size)
    gap, number, due = int(size * 8e3 / mbps), 0, time.monotonic_ns()
    end = due + int(seconds * 1e9)
    while due < end:
        now = time.monotonic_ns()
        while due <= now and due < end:
            try:
                out.send(HEAD.pack(number, due) + padding)
                number += 1
            except OSError:
                pass
            due += gap
        time.sleep(max(0.0005, (due - time.monotonic_ns()) / 1e9))


def receive(port, seconds):
    into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    into.bind(("", port))
    into.settimeout(0.02)
    windows, disordered, last = {}, 0, -1
    until = time.monotonic_ns() + int(seconds * 1e9)
    while time.monotonic_ns() < until:
        try:
            message = into.recv(65_536)
        except TimeoutError:
            continue
        now = time.monotonic_ns()
        number, sent = HEAD.unpack_from(message)
        disordered += number <= last
        last = number
        of = windows.setdefault(now // WINDOW_NS, [0, 0, 0])
        of[0] += len(message)
        of[1] += 1
        of[2] += now - sent
    print(json.dumps({"windows": windows, "steal": {}, "disordered": disordered}), flush=True)


def main():
    if sys.argv[1] == "send":
        host, port, size, mbps, seconds = sys.argv[2:7]
        send(host, int(port), int(size), float(mbps), float(seconds))
    else:
        receive(int(sys.argv[2]), float(sys.argv[3]))


main()
