"""A program of ZeroMQ for tests/interop.rs: peer.py PORT NAME [ARGUMENT...]. It prints what it received, a message a line:
the frames' hexadecimal digits, or the length and first byte of a long frame."""
import sys
import time
import zmq
from zmq.utils.monitor import recv_monitor_message

PORT, NAME, ARGUMENTS = sys.argv[1], sys.argv[2], sys.argv[3:]
LONG = b"x" * (1 << 20)
context = zmq.Context()


def socket(kind, **options):
    """A socket; options that the command line has as name=value are set before it connects."""
    result = context.socket(kind)
    result.setsockopt(zmq.LINGER, 5000)
    result.setsockopt(zmq.RCVTIMEO, 20000)
    result.setsockopt(zmq.RECONNECT_IVL, 20)
    for argument in ARGUMENTS:
        name, _, value = argument.partition("=")
        if name in ("curve_serverkey", "curve_secretkey", "curve_publickey"):
            setattr(result, name, bytes.fromhex(value))
        elif name.startswith("heartbeat_"):
            setattr(result, name, int(value))
    for name, value in options.items():
        setattr(result, name, value)
    return result


def connect(kind, **options):
    result = socket(kind, **options)
    result.connect(f"tcp://127.0.0.1:{PORT}")
    return result


def show(frames):
    text = [f"{len(f)}:{f[0]:02x}" if len(f) > 100 else f.hex() for f in frames]
    print("|".join(text), flush=True)


def sub():
    peer = connect(zmq.SUB)
    peer.subscribe(b"news")
    peer.subscribe(b"")
    peer.unsubscribe(b"")
    for _ in range(3):
        show(peer.recv_multipart())
    peer.unsubscribe(b"news")
    peer.subscribe(b"end")
    show(peer.recv_multipart())


def xsub():
    peer = connect(zmq.XSUB)
    peer.send(b"\x01topic")
    peer.send(b"hello")
    peer.send(b"\x00topic")
    show(peer.recv_multipart())


def publish(kind):
    peer = connect(kind, XPUB_VERBOSE=1) if kind == zmq.XPUB else connect(kind)
    if kind == zmq.XPUB:
        show([peer.recv()])
    else:
        # A PUB does not say when it has a subscriber. The first messages are lost until the subscription has arrived.
        for _ in range(200):
            peer.send(b"news.try")
            time.sleep(0.005)
    peer.send(b"other")
    peer.send_multipart([b"news.1", b"", b"body"])
    peer.send_multipart([b"news.2", LONG])
    peer.send(b"news.end")
    if kind == zmq.XPUB:
        show([peer.recv()])


def push():
    peer = connect(zmq.PUSH)
    for number in range(1000):
        peer.send_multipart([str(number).encode(), b"y" * (number % 600)])
    peer.send(LONG)


def pull():
    peer = connect(zmq.PULL)
    for _ in range(4):
        show(peer.recv_multipart())


def req():
    peer = connect(zmq.REQ)
    for text in (b"one", b"two"):
        peer.send(text)
        show(peer.recv_multipart())


def dealer():
    peer = connect(zmq.DEALER, identity=b"dealer-7")
    peer.send_multipart([b"", b"ask"])
    peer.send_multipart([b"", b"again"])
    for _ in range(2):
        show(peer.recv_multipart())


def idle():
    """Connects and waits for one message."""
    peer = connect(zmq.SUB)
    peer.subscribe(b"")
    show(peer.recv_multipart())


def refused():
    """Prints how the handshake failed."""
    names = {value: name for name, value in vars(zmq).items() if name.startswith(("EVENT_HANDSHAKE", "EVENT_DISCONNECTED"))}
    kind = zmq.PULL if "pull" in ARGUMENTS else zmq.SUB
    peer = socket(kind)
    monitor = peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                                      | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_SUCCEEDED
                                      | zmq.EVENT_DISCONNECTED)
    monitor.setsockopt(zmq.RCVTIMEO, 20000)
    peer.connect(f"tcp://127.0.0.1:{PORT}")
    event = recv_monitor_message(monitor)
    print(names[event["event"]], event["value"])


def reconnect():
    """Receives from connections that the server ends after each message."""
    peer = connect(zmq.SUB)
    peer.subscribe(b"again")
    for _ in range(5):
        show(peer.recv_multipart())


PEERS = {
    "sub": sub, "xsub": xsub, "xpub": lambda: publish(zmq.XPUB), "pub": lambda: publish(zmq.PUB), "push": push,
    "pull": pull, "req": req, "dealer": dealer, "idle": idle, "refused": refused, "reconnect": reconnect,
}
PEERS[NAME]()
context.destroy(linger=5000)
