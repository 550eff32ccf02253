"""The join and the windows of csp-messages-evaluation in Bytewax: prints the nanoseconds of an event for each."""
import sys
import time
from datetime import datetime, timedelta, timezone

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
SOURCES = ("ATLX", "EWRX", "JFKX", "LGAX")


def flight(at, number):
    return {"number": number, "source": SOURCES[at % 4], "departure": BEGIN + timedelta(seconds=number), "delay": at, "tail": f"N{at}",
            "distance": at}


def timed(flow, events):
    begin = time.perf_counter_ns()
    run_main(flow)
    return (time.perf_counter_ns() - begin) / events


def join(events):
    """Rows of equal numbers of both streams, each pair once."""
    flow, rows = Dataflow("join"), []
    sides = []
    for name in ("a", "b"):
        flights = [flight(n % 256, n) for n in range(events // 2)]
        stream = op.input(name, flow, TestingSource(flights, batch_size=64))
        sides.append(op.key_on("key-" + name, stream, lambda f: str(f["number"])))
    joined = op.join("join", *sides)
    result = op.map("project", joined, lambda pair: (pair[1][0]["number"], pair[1][0]["source"], pair[1][0]["departure"],
                                                     pair[1][1]["delay"], pair[1][1]["tail"]))
    op.output("out", result, TestingSink(rows))
    nanos = timed(flow, events)
    assert len(rows) == events // 2, len(rows)
    return nanos


def windows(events):
    """Number, mean and maximum by source in windows of an hour."""
    flow, rows = Dataflow("windows"), []
    stream = op.input("in", flow, TestingSource([flight(n % 256, n) for n in range(events)], batch_size=64))
    keyed = op.key_on("key", stream, lambda f: f["source"])
    clock = win.EventClock(lambda f: f["departure"], wait_for_system_duration=timedelta(seconds=5))
    windower = win.TumblingWindower(length=timedelta(hours=1), align_to=BEGIN)

    def fold(sums, f):
        return (sums[0] + 1, sums[1] + f["delay"], max(sums[2], f["distance"]))

    out = win.fold_window("fold", keyed, clock, windower, lambda: (0, 0, 0), fold, lambda a, b: (a[0] + b[0], a[1] + b[1], max(a[2], b[2])))
    op.output("out", out.down, TestingSink(rows))
    nanos = timed(flow, events)
    assert len(rows) >= events // 3600 * 4, len(rows)
    return nanos


EVENTS = int(sys.argv[1])
print(f"join {join(EVENTS):.1f}", flush=True)
print(f"windows {windows(EVENTS):.1f}", flush=True)
