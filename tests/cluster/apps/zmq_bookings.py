"""Bookings of passengers as binary records, pushed at a rate, or pulled and checked.

zmq_bookings.py push ENDPOINT COUNT RATE
zmq_bookings.py pull ENDPOINT COUNT      prints JSON: what became of names and documents, and the time between messages
"""

import gc
import json
import struct
import sys
import time

import zmq

# The header of SBE (block length, template, schema, version); flight, name, document.
RECORD = struct.Struct("<HHHHI12sQ")
HEAD = (24, 1, 41, 1)
NAME, DOCUMENT = b"A. Lovelace ", 18151210
SILENCE_MS = 60_000


def push(socket, count, rate):
    begun = time.monotonic()
    for number in range(count):
        socket.send(RECORD.pack(*HEAD, number, NAME, DOCUMENT))
        # Evenly, so that pauses of the receiver are not those of the sender.
        time.sleep(max(0, begun + number / rate - time.monotonic()))
    # Not before the broker has them all.
    socket.close(linger=SILENCE_MS)
    zmq.Context.instance().term()


def pull(socket, count):
    gc.disable()
    seen = []
    for number in range(count):
        if not socket.poll(SILENCE_MS):
            sys.exit(f"{number} of {count} messages, then silence")
        record = socket.recv()
        seen.append((time.perf_counter_ns(), record))
    if socket.poll(500):
        sys.exit(f"more than {count} messages")
    runs, gaps, before, changes = [], [], None, []
    for number, (at, record) in enumerate(seen):
        *head, flight, name, document = RECORD.unpack(record)
        if (tuple(head), flight) != (HEAD, number):
            sys.exit(f"message {flight} where {number} was expected")
        kind = ["plain" if name == NAME else "blank" if not name.strip() else "other", document]
        if not runs or runs[-1]["kind"] != kind:
            runs.append({"kind": kind, "count": 0})
            if before is not None:
                changes.append((at - before) / 1e3)
        elif before is not None:
            gaps.append((at - before) / 1e3)
        runs[-1]["count"] += 1
        before = at
    gaps.sort()
    part = lambda of: gaps[min(len(gaps) - 1, int(len(gaps) * of))]
    print(json.dumps({"runs": runs, "changes_us": changes, "p50_us": part(0.5), "p99_us": part(0.99), "max_us": gaps[-1]}), flush=True)


def main():
    pattern, endpoint, count = sys.argv[1:4]
    socket = zmq.Context.instance().socket(zmq.PUSH if pattern == "push" else zmq.PULL)
    socket.connect(endpoint)
    if pattern == "push":
        push(socket, int(count), int(sys.argv[4]))
    else:
        pull(socket, int(count))


main()
