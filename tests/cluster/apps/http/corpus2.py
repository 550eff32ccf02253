"""Sends requests of HTTP/2 that a proxy could turn into others of HTTP/1.1, each on a connection of its own by prior knowledge, a plain
one behind it; prints a line of JSON for each. Uses h2's encoder with its checks off.

Arguments: HOST PORT
"""
import concurrent.futures
import json
import socket
import sys

import h2.config
import h2.connection
import h2.events

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"0\r\n\r\n" + SMUGGLED
IDLE_S = 2.0


def head(method=b"GET", path=b"/", scheme=b"http", authority=b"a", more=()):
    pseudo = [(b":method", method), (b":scheme", scheme), (b":path", path), (b":authority", authority)]
    return [(name, value) for name, value in pseudo if value is not None] + list(more)


def post(*more, body=b"abc", trailers=None, **pseudo):
    return head(b"POST", more=more, **pseudo), body, trailers


def get(*more, **pseudo):
    return head(more=more, **pseudo), None, None


CASES = [
    ("get", "ok", get()),
    ("post", "ok", post()),
    ("post-length", "ok", post((b"content-length", b"3"))),
    ("post-is-request", "ok", post(body=SMUGGLED)),
    ("get-with-body", "ok", (head(), SMUGGLED, None)),
    ("delete-with-body", "ok", (head(b"DELETE"), SMUGGLED, None)),
    ("trailers", "ok", post(trailers=[(b"x", b"y")])),
    ("te-trailers", "ok", get((b"te", b"trailers"))),
    ("cookies", "ok", get((b"cookie", b"a=b"), (b"cookie", b"c=d"))),
    ("host-alone", "ok", get((b"host", b"a"), authority=None)),
    ("host-equal", "ok", get((b"host", b"a"))),
    ("expect", "ok", post((b"expect", b"100-continue"))),
    ("id-of-client", "ok", get((b"x-request-id", b"0123"))),
    # The crate h2 cuts the fragment, and pseudo-header fields of trailers: the member sees neither.
    ("path-fragment", "ok", get(path=b"/a#b")),
    ("trailers-pseudo", "ok", post(trailers=[(b":path", b"/x")])),
    ("length-short", "fault", post((b"content-length", b"3"), body=SMUGGLED)),
    ("length-long", "fault", post((b"content-length", b"100"), body=b"abc")),
    ("length-zero", "fault", post((b"content-length", b"0"), body=SMUGGLED)),
    ("length-twice", "fault", post((b"content-length", b"3"), (b"content-length", b"35"), body=b"abc")),
    ("length-list", "fault", post((b"content-length", b"3, 3"))),
    ("length-plus", "fault", post((b"content-length", b"+3"))),
    ("length-empty", "fault", post((b"content-length", b""))),
    ("length-2-64", "fault", post((b"content-length", b"18446744073709551619"))),
    ("te-chunked", "fault", post((b"transfer-encoding", b"chunked"), body=CHUNKED)),
    ("te-chunked-length", "fault", post((b"transfer-encoding", b"chunked"), (b"content-length", b"40"), body=CHUNKED)),
    ("te-identity", "fault", post((b"transfer-encoding", b"identity"))),
    ("name-upper", "fault", post((b"Transfer-Encoding", b"chunked"), body=CHUNKED)),
    ("name-crlf", "fault", post((b"x: y\r\ntransfer-encoding", b"chunked"), body=CHUNKED)),
    ("name-lf", "fault", post((b"x: y\ntransfer-encoding", b"chunked"), body=CHUNKED)),
    ("name-colon", "fault", post((b"transfer-encoding: chunked\r\nx", b"y"), body=CHUNKED)),
    ("name-colon-inside", "fault", get((b"a:b", b"c"))),
    ("name-space", "fault", post((b"transfer-encoding ", b"chunked"), body=CHUNKED)),
    ("name-space-front", "fault", post((b" transfer-encoding", b"chunked"), body=CHUNKED)),
    ("name-nul", "fault", get((b"a\0b", b"c"))),
    ("name-high", "fault", get((b"a\xff", b"c"))),
    ("name-empty", "fault", get((b"", b"c"))),
    ("value-crlf", "fault", post((b"x", b"y\r\nTransfer-Encoding: chunked"), body=CHUNKED)),
    ("value-crlf-crlf", "fault", get((b"x", b"y\r\n\r\n" + SMUGGLED))),
    ("value-lf", "fault", post((b"x", b"y\nTransfer-Encoding: chunked"), body=CHUNKED)),
    ("value-cr", "fault", get((b"x", b"y\rz"))),
    ("value-nul", "fault", get((b"x", b"y\0z"))),
    ("value-front-space", "fault", get((b"x", b" y"))),
    ("value-end-space", "fault", get((b"x", b"y "))),
    ("method-request", "fault", get(method=b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nGET")),
    ("method-space", "fault", get(method=b"GET /smuggled")),
    ("method-empty", "fault", get(method=b"")),
    ("method-none", "fault", get(method=None)),
    ("path-request", "fault", get(path=b"/ HTTP/1.1\r\nHost: a\r\n\r\nGET /smuggled")),
    ("path-space", "fault", get(path=b"/a HTTP/1.1")),
    ("path-lf", "fault", get(path=b"/\nx: y")),
    ("path-tab", "fault", get(path=b"/\tx")),
    ("path-nul", "fault", get(path=b"/\0")),
    ("path-empty", "fault", get(path=b"")),
    ("path-none", "fault", get(path=None)),
    ("path-relative", "fault", get(path=b"x")),
    ("path-absolute", "fault", get(path=b"http://b/x")),
    ("path-asterisk", "fault", get(path=b"*")),
    ("scheme-url", "fault", get(scheme=b"http://b/x?")),
    ("scheme-crlf", "fault", get(scheme=b"http\r\nx: y")),
    ("scheme-none", "fault", get(scheme=None)),
    ("authority-crlf", "fault", get(authority=b"a\r\nTransfer-Encoding: chunked")),
    ("authority-user", "fault", get(authority=b"b@a")),
    ("authority-path", "fault", get(authority=b"a/x")),
    ("authority-empty", "fault", get(authority=b"")),
    ("authority-none", "fault", get(authority=None)),
    ("authority-twice", "fault", ([*head(), (b":authority", b"b")], None, None)),
    ("host-differs", "fault", get((b"host", b"b"))),
    ("host-twice", "fault", get((b"host", b"a"), (b"host", b"a"))),
    ("host-crlf", "fault", get((b"host", b"a\r\nx: y"), authority=None)),
    ("pseudo-last", "fault", ([(b":method", b"GET"), (b":scheme", b"http"), (b"x", b"y"), (b":path", b"/"), (b":authority", b"a")], None, None)),
    ("pseudo-twice", "fault", ([*head(), (b":path", b"/x")], None, None)),
    ("pseudo-unknown", "fault", ([*head(), (b":x", b"y")], None, None)),
    ("pseudo-status", "fault", ([*head(), (b":status", b"200")], None, None)),
    ("pseudo-protocol", "fault", ([*head(), (b":protocol", b"websocket")], None, None)),
    ("connection", "fault", get((b"connection", b"keep-alive"))),
    ("connection-length", "fault", post((b"connection", b"content-length"), (b"content-length", b"3"))),
    ("keep-alive", "fault", get((b"keep-alive", b"timeout=5"))),
    ("proxy-connection", "fault", get((b"proxy-connection", b"keep-alive"))),
    ("upgrade", "fault", get((b"upgrade", b"websocket"))),
    ("te-gzip", "fault", get((b"te", b"gzip"))),
    ("connect", "fault", (head(b"CONNECT", path=None, scheme=None, authority=b"a:443"), None, None)),
    ("connect-path", "fault", get(method=b"CONNECT")),
    ("trace", "fault", get(method=b"TRACE")),
    ("trailers-chunked", "fault", post(trailers=[(b"transfer-encoding", b"chunked")])),
    ("trailers-crlf", "fault", post(trailers=[(b"x", b"y\r\n\r\n" + SMUGGLED)])),
    ("trailers-upper", "fault", post(trailers=[(b"X", b"y")])),
]


class Client:
    """One connection."""

    def __init__(self):
        self.peer = socket.create_connection(sys.argv[1:3], 5)
        self.peer.settimeout(IDLE_S)
        off = dict.fromkeys(["validate_outbound_headers", "normalize_outbound_headers", "validate_inbound_headers"], False)
        self.machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None, **off))
        self.machine.initiate_connection()
        self.answers, self.ended, self.reason = {}, set(), None

    def send(self, stream, fields, body, trailers):
        self.machine.send_headers(stream, fields, end_stream=body is None)
        if body is not None:
            self.machine.send_data(stream, body, end_stream=trailers is None)
        if trailers is not None:
            self.machine.send_headers(stream, trailers, end_stream=True)
        self.flush()

    def flush(self):
        if data := self.machine.data_to_send():
            self.peer.sendall(data)

    def answer(self, stream):
        """Waits until the stream has ended; returns status, whether the member answered, and how it ended."""
        try:
            while stream not in self.ended:
                data = self.peer.recv(65536)
                if not data:
                    return (*self.answers.get(stream, (0, False)), "closed")
                for event in self.machine.receive_data(data):
                    self.see(event)
                self.flush()
        except TimeoutError:
            self.reason = "open"
        except OSError:
            self.reason = "reset of the connection"
        return (*self.answers.get(stream, (0, False)), self.reason or "ended")

    def see(self, event):
        if isinstance(event, h2.events.ResponseReceived):
            fields = dict(event.headers)
            self.answers[event.stream_id] = int(fields[b":status"]), b"x-member" in fields and not (
                int(fields[b":status"]) >= 400 and fields.get(b"content-type") == b"text/plain; charset=utf-8")
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.ended.add(event.stream_id)
            self.reason = f"reset {event.error_code}"
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.reason = f"goaway {event.error_code}"
            self.ended.update([1, 3])


def run(case):
    name, outcome, (fields, body, trailers) = case
    client = Client()
    try:
        client.send(1, fields, body, trailers)
        status, of_member, end = client.answer(1)
        answered, seen = [status] if status else [], int(of_member)
        if end == "ended" or end.startswith("reset "):
            client.reason = None
            client.send(3, head(path=b"/behind"), None, None)
            status, of_member, behind = client.answer(3)
            answered, seen = answered + [status], seen + int(of_member)
            if not of_member:
                end += f", behind: {status} {behind}"
    finally:
        client.peer.close()
    behind_came = client.answers.get(3, (0, False))[1]
    return {"name": name, "outcome": [outcome], "statuses": answered, "of_member": seen, "end": end, "behind": behind_came}


def main():
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        for line in threads.map(run, CASES):
            print(json.dumps(line))


main()
