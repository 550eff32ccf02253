"""Sends requests of a corpus as they are, each on a connection of its own, alone and with another request behind it; prints a line of JSON
for each: how many answers came, how many of them from the member (X-Member), and what the corpus says of the request.

Arguments: HOST PORT FILE...
"""
import concurrent.futures
import json
import re
import socket
import sys

MARKER = b"GET /behind HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
# Nothing more comes after this time without a byte: the proxy waits for the rest of a request.
IDLE_S = 0.5
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


def unescaped(text):
    def one(found):
        return ESCAPES.get(found[1].decode()) or bytes([int(found[1][1:], 16)])

    return re.sub(rb"\\(x[0-9a-f]{2}|.)", one, text.encode("latin-1"))


def cases(files):
    for file in files:
        for line in open(file, encoding="latin-1"):
            if line.strip() and not line.startswith("#"):
                name, outcome, text = line.rstrip("\n").split(" | ", 2)
                yield name, outcome.split(), unescaped(text)


def answers(sent):
    """What the proxy sends back."""
    with socket.create_connection(sys.argv[1:3], 5) as peer:
        got = b""
        try:
            peer.sendall(sent)
            peer.settimeout(IDLE_S)
            while part := peer.recv(65536):
                got += part
            end = "closed"
        except TimeoutError:
            end = "open"
        except OSError:
            end = "reset"
    heads = re.findall(rb"HTTP/1\.1 (\d{3}) [^\r\n]*((?:\r\n[^\r\n]+)*)\r\n\r\n", got)
    # The proxy's own answers get the route's field, too; its pages are text of this type.
    own = lambda status, head: status >= b"400" and b"\ncontent-type: text/plain; charset=utf-8" in head.lower()
    finals = [(status, head) for status, head in heads if status[:1] != b"1"]
    of_member = sum(b"\nx-member:" in head.lower() and not own(status, head) for status, head in finals)
    return [int(status) for status, _ in heads if status[:1] != b"1"], of_member, end


def run(case):
    name, outcome, bytes_, behind = case
    statuses, of_member, end = answers(bytes_ + behind)
    return {"name": name + ("+1" if behind else ""), "outcome": outcome, "statuses": statuses, "of_member": of_member, "end": end}


def main():
    all_ = [(*case, behind) for case in cases(sys.argv[3:]) for behind in (b"", MARKER)]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        for line in threads.map(run, all_):
            print(json.dumps(line))


main()
