"""A program of ZeroMQ for tests/interop.rs and tests/crowd.rs: peer.py PORT NAME KEYS [ARGUMENT...].

KEYS are the server's public key, the program's own and its secret key, or empty. It prints a line for each thing that has happened, and
waits for a line of standard input where the test decides when it goes on."""
import resource
import sys
import zmq
from zmq.utils.monitor import recv_monitor_message

PORT, NAME, KEYS, ARGUMENTS = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4:]
context = zmq.Context()
EVENTS = {value: name for name, value in vars(zmq).items()
          if name.startswith(("EVENT_HANDSHAKE", "EVENT_DISCONNECTED"))}


def say(text):
    print(text, flush=True)


def prepare(peer):
    peer.setsockopt(zmq.LINGER, 5000)
    peer.setsockopt(zmq.RCVTIMEO, 50000)
    peer.setsockopt(zmq.RECONNECT_IVL, 20)
    if KEYS:
        peer.curve_serverkey, peer.curve_publickey, peer.curve_secretkey = (key.encode() for key in KEYS)


def connect(kind):
    peer = context.socket(kind)
    prepare(peer)
    peer.connect(f"tcp://127.0.0.1:{PORT}")
    return peer


def publish():
    """Sends the lines that it is given, frames parted by spaces; prints when the broker has asked for messages: at the start, and for
    each line with a question mark."""
    peer = connect(zmq.XPUB)
    peer.setsockopt(zmq.XPUB_VERBOSE, 1)  # the subscription of a new connection is reported although the socket has had it
    while peer.recv() != b"\x01":
        pass
    say("connected")
    for line in sys.stdin:
        if line.strip() == "?":
            while peer.recv() != b"\x01":
                pass
            say("connected")
        else:
            peer.send_multipart([frame.encode() for frame in line.split()])


def subscribe():
    """Subscribes to its arguments and prints what it receives."""
    peer = connect(zmq.SUB)
    for topic in ARGUMENTS or [""]:
        peer.subscribe(topic)
    while True:
        say(" ".join(frame.decode() for frame in peer.recv_multipart()))


def crowd():
    """As many subscribers as the first argument says. As often as the second says: prints how many have received `end`, and what they
    received before it in all."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    peers = []
    for _ in range(int(ARGUMENTS[0])):
        peer = context.socket(zmq.SUB)
        prepare(peer)
        peer.subscribe(b"")
        peer.connect(f"tcp://127.0.0.1:{PORT}")
        peers.append(peer)
    poller = zmq.Poller()
    for peer in peers:
        poller.register(peer, zmq.POLLIN)
    for _ in range(int(ARGUMENTS[1])):
        received, ended = 0, 0
        while ended < len(peers):
            # A socket repeats its subscriptions after it has reconnected when the program looks at it next.
            for peer, _ in poller.poll(1000):
                if peer.recv_multipart() == [b"end"]:
                    ended += 1
                else:
                    received += 1
        say(f"{len(peers)} {received}")


def ask():
    """Sends its arguments as requests, one after the other, as REQ and as DEALER, and prints the answers."""
    for kind in (zmq.REQ, zmq.DEALER):
        peer = connect(kind)
        for request in ARGUMENTS:
            peer.send_multipart([request.encode()] if kind == zmq.REQ else [b"1", b"", request.encode()])
            say(" ".join(frame.decode() for frame in peer.recv_multipart()))


def xpub():
    """Binds an XPUB and prints its port. Of each line it receives as many subscriptions and cancellations as the first word says, then
    publishes the others."""
    peer = context.socket(zmq.XPUB)
    prepare(peer)
    peer.setsockopt(78, 1)  # XPUB_VERBOSER: repeated subscriptions and every cancellation are reported
    say(peer.bind_to_random_port("tcp://127.0.0.1"))
    for line in sys.stdin:
        count, *topics = line.split()
        for _ in range(int(count)):
            peer.recv()
        for topic in topics:
            peer.send(topic.encode())


def push():
    """Sends messages to the broker and to a PULL of libzmq: as many as the first argument says, one of as many frames as the second says,
    as many as the third. Prints how many the PULL has received."""
    before, frames, after = (int(argument) for argument in ARGUMENTS)
    theirs = context.socket(zmq.PULL)
    prepare(theirs)
    direct = context.socket(zmq.PUSH)
    direct.connect(f"tcp://127.0.0.1:{theirs.bind_to_random_port('tcp://127.0.0.1')}")
    messages = [[b"message", b"%d" % n] for n in range(before + 1 + after)]
    messages[before] = [b"x"] * frames
    for peer in direct, connect(zmq.PUSH):
        for message in messages:
            peer.send_multipart(message)
    assert [theirs.recv_multipart() for _ in messages] == messages
    say(len(messages))
    sys.stdin.readline()


def pull():
    """Prints what it pulls."""
    peer = connect(zmq.PULL)
    while True:
        say(" ".join(frame.decode() for frame in peer.recv_multipart()))


def outcome():
    """Connects as SUB, or as the argument says, and prints how the handshake ended."""
    kind = getattr(zmq, ARGUMENTS[0]) if ARGUMENTS else zmq.SUB
    peer = context.socket(kind)
    prepare(peer)
    monitor = peer.get_monitor_socket(sum(EVENTS))
    monitor.setsockopt(zmq.RCVTIMEO, 50000)
    peer.connect(f"tcp://127.0.0.1:{PORT}")
    event = recv_monitor_message(monitor)
    say(f"{EVENTS[event['event']]} {event['value']}")


{"publish": publish, "subscribe": subscribe, "crowd": crowd, "outcome": outcome, "ask": ask, "xpub": xpub, "push": push, "pull": pull}[NAME]()
context.destroy(linger=5000)
