"""A program that brings a handler to a channel, and reads what it makes of the channel's messages.

zmq_handler.py bring ENDPOINT FILE COUNT GATE
    brings the module in FILE, prints the answer, reads COUNT messages or more until the file GATE is there, which is another module,
    brings that under the same name, prints the answer, and reads COUNT messages of it; prints how many of each. A message that the second
    module has made ends with "!"
zmq_handler.py keep ENDPOINT FILE NAME
    brings the module in FILE under this name, prints the answer, and stays
zmq_handler.py publish ENDPOINT
    publishes numbers until it is killed
"""

import json
import os
import sys
import time

import zmq

context = zmq.Context.instance()


def ask(asker, name, file):
    asker.send_multipart([json.dumps({"handler": {"name": name}}).encode(), open(file, "rb").read()])
    answer = asker.recv_json()
    print(json.dumps(answer), flush=True)
    return answer


def bring(endpoint, file, count, gate):
    asker, made = context.socket(zmq.REQ), context.socket(zmq.SUB)
    asker.connect(endpoint)
    answer = ask(asker, "mine", file)
    made.connect(answer["address"])
    made.subscribe(answer["topic"])
    first, second = [], []
    while len(second) < count:
        # It reads all the time, so that no queue on the way is ever full.
        message = made.recv_multipart()[1:]
        (second if message[0][-1:] == b"!" else first).append(message)
        if gate and len(first) >= count and os.path.exists(gate):
            assert ask(asker, "mine", gate)["topic"] == answer["topic"]
            gate = None
    numbers = [int(message[0].rstrip(b"!")) for message in first + second]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a message was lost or doubled"
    print(len(first), len(second), flush=True)


def keep(endpoint, file, name):
    asker, made = context.socket(zmq.REQ), context.socket(zmq.SUB)
    asker.connect(endpoint)
    answer = ask(asker, name, file)
    made.connect(answer["address"])
    made.subscribe(answer["topic"])
    while True:
        made.recv_multipart()


def publish(endpoint):
    publisher = context.socket(zmq.PUB)
    publisher.connect(endpoint)
    number = 0
    while True:
        publisher.send(b"%d" % number)
        number += 1
        time.sleep(0.005)


{"bring": lambda e, f, n, g: bring(e, f, int(n), g), "keep": keep, "publish": publish}[sys.argv[1]](*sys.argv[2:])
