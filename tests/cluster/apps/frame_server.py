"""A request server as its author would write it, without CSP: answers each message behind a Simple Open Framing Header with its own
number on the connection and the request, in capitals.

frame_server.py PORT
"""

import socketserver
import struct
import sys


class Requests(socketserver.StreamRequestHandler):
    """Answers until the client ends."""

    def handle(self):
        number = 0
        while header := self.rfile.read(6):
            length, encoding = struct.unpack(">IH", header)
            answer = b"%d:" % number + self.rfile.read(length - 6).upper()
            message = struct.pack(">IH", len(answer) + 6, encoding) + answer
            half = len(message) // 2
            for part in (message[:half], message[half:]):
                self.wfile.write(part)
            number += 1


class Server(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


Server(("0.0.0.0", int(sys.argv[1])), Requests).serve_forever()
