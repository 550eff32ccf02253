"""A ZeroMQ program with keys: zmq_keys.py publish|subscribe|outcome ENDPOINT SERVER_KEY_FILE PAIR_FILE

publish sends until it is stopped; subscribe prints the first message that it gets, and goes on receiving; outcome connects as SUB and
prints how the handshake ended."""

import sys
import time

import zmq
import zmq.auth
from zmq.utils.monitor import recv_monitor_message

what, endpoint, server, pair = sys.argv[1:]
peer = zmq.Context().socket(zmq.PUB if what == "publish" else zmq.SUB)
peer.curve_publickey, peer.curve_secretkey = zmq.auth.load_certificate(pair)
peer.curve_serverkey, _ = zmq.auth.load_certificate(server)
events = {value: name for name, value in vars(zmq).items() if name.startswith("EVENT_HANDSHAKE")}
monitor = peer.get_monitor_socket(sum(events)) if what == "outcome" else None
peer.connect(endpoint)
if what == "publish":
    number = 0
    while True:
        peer.send_multipart([b"tick", str(number).encode()])
        number += 1
        time.sleep(0.02)
elif what == "subscribe":
    peer.subscribe(b"tick")
    print(peer.recv_multipart()[0].decode(), flush=True)
    while True:
        peer.recv_multipart()
else:
    event = recv_monitor_message(monitor)
    print(events[event["event"]], event["value"])
