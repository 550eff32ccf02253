"""Records of fixed layout: publishes flights or winds, prints the rows that a query makes of them, or asks for rows and prints those."""
import json
import struct
import sys
import time

import zmq

TEMPLATES = {"flights": 1, "winds": 2}


def record(template, origin, value, at):
    return struct.pack("<4H3shq", 13, template, 40, 1, origin, value, at)


def main():
    what, endpoint, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    context = zmq.Context()
    if what in ("rows", "asked"):
        subscriber, topic = context.socket(zmq.SUB), ""
        if what == "asked":
            asker = context.socket(zmq.REQ)
            asker.connect(endpoint)
            asker.send_string(sys.argv[4])
            answer = asker.recv_json()
            if "error" in answer:
                sys.exit(answer["error"])
            endpoint, topic = answer["address"], answer["topic"]
        subscriber.connect(endpoint)
        subscriber.subscribe(topic)
        print(json.dumps([json.loads(subscriber.recv_multipart()[-1]) for _ in range(count)]))
        return
    publisher = context.socket(zmq.XPUB)
    publisher.connect(endpoint)
    publisher.recv()  # the broker asks for everything: it is there
    pace = float(sys.argv[4]) if len(sys.argv) > 4 else 0
    for n in range(count):
        time.sleep(pace)
        origin = (b"EWR", b"JFK", b"LGA")[n % 3]
        publisher.send_multipart([origin, record(TEMPLATES[what], origin, n, 60 * n)])
    time.sleep(3600)  # until it is ended, so that nothing is cut off


main()
