#!/usr/bin/env python3
"""Opens a connection to a VIP again and again, and writes each outcome with the time since the start.

    prober.py ADDRESS PORT TIMEOUT_MS

Each attempt sends one SYN: a lost one is not repeated by the kernel within the time-out, so that the log shows
when the address answers again to within one time-out. A line is `SECONDS up` or `SECONDS down REASON`.
"""
import socket
import sys
import time

address, port, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) / 1000
while True:
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    with socket.socket() as client:
        client.settimeout(timeout)
        try:
            client.connect((address, port))
            outcome = "up"
        except OSError as error:
            outcome = f"down {error}"
    print(f"{began:.3f} {outcome}", flush=True)
    time.sleep(0.01)
