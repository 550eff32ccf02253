"""ZeroMQ programs at several channels at once, which a test directs by a file and watches by another.

zmq_channels.py send NAME UPTO ENDPOINTS       sends numbered messages at every channel, up to the number that the file UPTO has
zmq_channels.py receive STATE ENDPOINTS        writes to the file STATE what it has got: endpoint → sender → [last, missing, again]

ENDPOINTS: PUB=tcp://…,PUSH=tcp://… (or SUB=, PULL=). A puller gets some of the numbers only: it writes them all.
"""

import json
import os
import sys
import time

import zmq

RATE = 100  # messages a second at each channel


def sockets(endpoints):
    context = zmq.Context()
    for entry in endpoints.split(","):
        kind, endpoint = entry.split("=", 1)
        socket = context.socket(getattr(zmq, kind))
        # A peer that only receives would not notice that its proxy has died.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        if kind == "SUB":
            socket.subscribe(b"")
        socket.connect(endpoint)
        yield kind, endpoint, socket


def upto(path):
    try:
        with open(path) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0


def send(name, path, endpoints):
    every = [socket for _, _, socket in sockets(endpoints)]
    number = 0
    while True:
        last, begun = upto(path), time.monotonic()
        for at in range(last - number):
            for socket in every:
                socket.send_multipart([name.encode(), str(number).encode(), bytes(500)])
            number += 1
            time.sleep(max(0, begun + (at + 1) / RATE - time.monotonic()))
        time.sleep(0.02)


def receive(state, endpoints):
    poller, of = zmq.Poller(), {}
    seen = {}
    for kind, endpoint, socket in sockets(endpoints):
        poller.register(socket, zmq.POLLIN)
        of[socket] = (kind, endpoint)
        seen[endpoint] = {}
    written = time.monotonic()
    while True:
        for socket, _ in poller.poll(100):
            kind, endpoint = of[socket]
            for _ in range(100):
                try:
                    name, number, _ = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                name, number = name.decode(), int(number)
                if kind == "PULL":
                    seen[endpoint].setdefault(name, []).append(number)
                    continue
                entry = seen[endpoint].setdefault(name, [-1, 0, 0])
                if number <= entry[0]:
                    entry[2] += 1
                else:
                    entry[1] += number - entry[0] - 1
                    entry[0] = number
        if time.monotonic() > written + 0.2:
            written = time.monotonic()
            with open(state + ".new", "w") as file:
                json.dump(seen, file)
            os.rename(state + ".new", state)


if sys.argv[1] == "send":
    send(*sys.argv[2:5])
else:
    receive(*sys.argv[2:4])
