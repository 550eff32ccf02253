"""An echo server outside of the cluster: echo.py ADDRESS PORT."""

import socket
import socketserver
import sys


class Echo(socketserver.BaseRequestHandler):
    """Sends back what comes, until the client ends."""

    def handle(self):
        try:
            while data := self.request.recv(65536):
                self.request.sendall(data)
        except ConnectionError:
            pass


class Server(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    address_family = socket.AF_INET


Server((sys.argv[1], int(sys.argv[2])), Echo).serve_forever()
