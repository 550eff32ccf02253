"""Publishers and receivers of information flows.

zmq_flows.py publish ENDPOINT SIZE STEPS    STEPS: Mb/s:seconds,... ; prints how many messages
zmq_flows.py count ENDPOINT SIZE COUNT RATE publishes so many messages at so many Mb/s
zmq_flows.py ring ENDPOINT SIZE MBPS:SECONDS one connection for the kinds a, b and c in turn, each at so many Mb/s
zmq_flows.py receive ENDPOINT SECONDS [KIND] prints, as JSON, what arrived in each tenth of a second of the machine's clock
zmq_flows.py all ENDPOINT COUNT             until so many have arrived, in order and without a gap

A message is its number and the time at which it was to be sent, both in 8 bytes, and padding. Those of a ring have their kind as topic, and
a header of Simple Binary Encoding before the rest, whose template is that of their kind.
"""

import json
import struct
import sys
import time

import zmq

HEAD = struct.Struct("!QQ")
WINDOW_NS = 100_000_000
SILENCE_MS = 90_000


def publisher(endpoint):
    socket = zmq.Context.instance().socket(zmq.XPUB)
    socket.sndhwm = 100
    socket.connect(endpoint)
    # The broker asks for all messages.
    if not socket.poll(SILENCE_MS):
        sys.exit("the broker asks for nothing")
    socket.recv()
    return socket


def paced(socket, size, steps):
    """Sends messages at each step's rate; what had no room is not sent, as the paper's sources do."""
    padding = b"x" * (size - HEAD.size)
    number, due = 0, time.monotonic_ns()
    for mbps, seconds in steps:
        gap = int(size * 8e3 / mbps)
        end = due + int(seconds * 1e9)
        while due < end:
            now = time.monotonic_ns()
            while due <= now and due < end:
                try:
                    socket.send(HEAD.pack(number, due) + padding, zmq.DONTWAIT)
                    number += 1
                except zmq.Again:
                    pass
                due += gap
            time.sleep(max(0.0005, (due - time.monotonic_ns()) / 1e9))
    return number


def ring(socket, size, mbps, seconds):
    """What has no room is not sent, whatever its kind: all kinds share what is between here and the broker."""
    kinds = [(kind, struct.pack("<4H", 16, template, 77, 0)) for template, kind in ((1, b"a"), (2, b"b"), (3, b"c"))]
    padding = b"x" * (size - HEAD.size - 9)
    gap, numbers, sent, due = int(size * 8e3 / mbps / 3), [0, 0, 0], 0, time.monotonic_ns()
    end = due + int(seconds * 1e9)
    while due < end:
        now = time.monotonic_ns()
        while due <= now and due < end:
            at = sent % 3
            kind, header = kinds[at]
            try:
                socket.send_multipart([kind, header + HEAD.pack(numbers[at], due) + padding], zmq.DONTWAIT)
                numbers[at] += 1
            except zmq.Again:
                pass
            sent += 1
            due += gap
        time.sleep(max(0.0005, (due - time.monotonic_ns()) / 1e9))
    return sum(numbers)


def count(socket, size, wanted, mbps):
    padding = b"x" * (size - HEAD.size)
    for number in range(wanted):
        socket.send(HEAD.pack(number, time.monotonic_ns()) + padding)
        time.sleep(size * 8 / (mbps * 1e6))


def receiver(endpoint, kind=b""):
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.rcvhwm = 0
    socket.subscribe(kind)
    socket.connect(endpoint)
    return socket


def stolen():
    """Ticks that the hypervisor took."""
    with open("/proc/stat", encoding="ascii") as stat:
        return int(stat.readline().split()[8])


def receive(socket, seconds, offset=0):
    windows, until, last = {}, time.monotonic_ns() + int(seconds * 1e9), -1
    disordered, at, ticks = 0, None, stolen()
    steal = {}
    while (now := time.monotonic_ns()) < until:
        if now // WINDOW_NS != at:
            before, ticks = ticks, stolen()
            if at is not None:
                steal[at] = ticks - before
            at = now // WINDOW_NS
        if not socket.poll(20):
            continue
        while True:
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            now = time.monotonic_ns()
            number, sent = HEAD.unpack_from(frames[-1], offset)
            disordered += number <= last
            last = number
            of = windows.setdefault(now // WINDOW_NS, [0, 0, 0])
            of[0] += sum(map(len, frames))
            of[1] += 1
            of[2] += now - sent
            if now // WINDOW_NS != at:
                break
    print(json.dumps({"windows": windows, "steal": steal, "disordered": disordered}), flush=True)


def receive_all(socket, wanted):
    for expected in range(wanted):
        if not socket.poll(SILENCE_MS):
            sys.exit(f"{expected} of {wanted} messages, then silence")
        number, _ = HEAD.unpack_from(socket.recv())
        if number != expected:
            sys.exit(f"{number} where {expected} was expected")
    print(f"{wanted} messages", flush=True)


def main():
    what, endpoint = sys.argv[1:3]
    if what == "publish":
        steps = [tuple(map(float, step.split(":"))) for step in sys.argv[4].split(",")]
        socket = publisher(endpoint)
        print(paced(socket, int(sys.argv[3]), steps), flush=True)
        socket.close(linger=2_000)
    elif what == "count":
        socket = publisher(endpoint)
        count(socket, int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
        socket.close(linger=SILENCE_MS)
    elif what == "ring":
        socket = publisher(endpoint)
        print(ring(socket, int(sys.argv[3]), *map(float, sys.argv[4].split(":"))), flush=True)
        socket.close(linger=2_000)
    elif what == "receive":
        kind = sys.argv[4].encode() if len(sys.argv) > 4 else b""
        receive(receiver(endpoint, kind), float(sys.argv[3]), 8 if kind else 0)
    else:
        receive_all(receiver(endpoint), int(sys.argv[3]))


main()
