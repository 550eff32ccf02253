"""A ZeroMQ program on a channel that plain TCP programs use too: sends or receives messages of one frame.

zmq_feed.py publish ENDPOINT NAME COUNT     COUNT numbered messages, after a subscriber of its own has seen that it is connected
zmq_feed.py subscribe ENDPOINT NAMES COUNT  until COUNT messages of each publisher; prints what each has sent
"""

import json
import sys

import zmq

mode, endpoint, names, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
context = zmq.Context()
receiver = context.socket(zmq.SUB)
receiver.connect(endpoint)
receiver.setsockopt(zmq.RCVTIMEO, 30_000)
if mode == "publish":
    receiver.subscribe(b"warm")
    sender = context.socket(zmq.PUB)
    sender.connect(endpoint)
    while not receiver.poll(20):
        sender.send(b"warm")
    for number in range(count):
        sender.send(b"%s %d " % (names.encode(), number) + b"x" * 600)
    context.destroy(linger=10_000)
else:
    seen = {name: [] for name in names.split(",")}
    for name in seen:
        receiver.subscribe(name.encode())
    while any(len(numbers) < count for numbers in seen.values()):
        name, number, _ = receiver.recv().split(b" ")
        seen[name.decode()].append(int(number))
    print(json.dumps(seen), flush=True)
    context.destroy(linger=0)
