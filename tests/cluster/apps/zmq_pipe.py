"""A ZeroMQ pipeline whose messages must all arrive, once and in order.

zmq_pipe.py push ENDPOINT COUNT      as fast as the broker takes them
zmq_pipe.py pull ENDPOINT COUNT AT GATE
    until all have arrived; prints how many, or what is wrong. After AT messages it reads no more until the file GATE is there.
"""

import os
import sys
import time

import zmq

LEN = 600
# Longer than any pause of the path that is tested.
SILENCE_MS = 90_000


def body(number):
    return (b"%d " % number).ljust(LEN, b"x")


def push(socket, count):
    for number in range(count):
        socket.send(body(number))
    # Not before the broker has them all.
    socket.close(linger=SILENCE_MS)
    zmq.Context.instance().term()


def pull(socket, count, at, gate):
    for number in range(count):
        while number == at and not os.path.exists(gate):
            time.sleep(0.02)
        if not socket.poll(SILENCE_MS):
            sys.exit(f"{number} of {count} messages, then silence")
        found = socket.recv()
        if found != body(number):
            sys.exit(f"{found[:12]} where {number} was expected")
    if socket.poll(500):
        sys.exit(f"more than {count} messages")
    print(f"{count} messages", flush=True)


def main():
    pattern, endpoint, count = sys.argv[1:4]
    socket = zmq.Context.instance().socket(zmq.PUSH if pattern == "push" else zmq.PULL)
    # What it has not read is to wait at the broker.
    socket.rcvhwm, socket.rcvbuf = 100, 1 << 16
    socket.connect(endpoint)
    if pattern == "push":
        push(socket, int(count))
    else:
        pull(socket, int(count), int(sys.argv[4]), sys.argv[5])


main()
