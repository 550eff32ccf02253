"""A ZeroMQ program, as its author would write it for a broker: sends numbered messages, or receives them and checks them.

zmq_peer.py publish|push ENDPOINT NAME COUNT     the topic is NAME; COUNT messages in about COUNT / 2,000 seconds
zmq_peer.py subscribe|pull ENDPOINT NAMES        until the last message of each sender; prints what each has sent
"""

import json
import sys
import time

import zmq

WARM, NUMBERED, END = b"warm", b"number", b"end"
# Messages a second, and how long a receiver waits for its first message and for each later one.
RATE, FIRST_MS, SILENCE_MS = 2_000, 20_000, 4_000


def body(number):
    return bytes((number + at) % 251 for at in range(16)) * 36


def send(socket, name, count):
    def one(kind, number):
        socket.send_multipart([name.encode(), kind, str(number).encode(), body(number)])

    for _ in range(100):  # a publisher's first messages are lost until it is connected
        one(WARM, 0)
        time.sleep(0.01)
    begun = time.monotonic()
    for number in range(count):
        one(NUMBERED, number)
        time.sleep(max(0, begun + number / RATE - time.monotonic()) if number % 20 == 0 else 0)
    time.sleep(0.5)
    one(END, count)


def receive(socket, names):
    seen = {name: [] for name in names}
    open_names, wait_ms = set(names), FIRST_MS
    while open_names and socket.poll(wait_ms):
        wait_ms = SILENCE_MS
        name, kind, number, content = socket.recv_multipart()
        name, number = name.decode(), int(number)
        if kind == END:
            open_names.discard(name)
            continue
        if content != body(number):
            sys.exit(f"message {number} of {name} has another content")
        if kind == NUMBERED:
            seen[name].append(number)
    print(json.dumps({"numbers": seen, "without_end": sorted(open_names)}), flush=True)


def main():
    pattern, endpoint, names = sys.argv[1:4]
    kinds = {"publish": zmq.PUB, "push": zmq.PUSH, "subscribe": zmq.SUB, "pull": zmq.PULL}
    socket = zmq.Context().socket(kinds[pattern])
    socket.connect(endpoint)
    if pattern in ("publish", "push"):
        send(socket, names, int(sys.argv[4]))
    else:
        if pattern == "subscribe":
            for name in names.split(","):
                socket.subscribe(name.encode())
        receive(socket, names.split(","))


main()
