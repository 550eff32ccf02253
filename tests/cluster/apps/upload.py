"""A small web application on Python's own http.server: PUT or POST stores a body and answers its SHA-256."""
import hashlib
import http.server
import socket
import sys


class Upload(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        digest = hashlib.sha256()
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        for part in self.chunks() if chunked else self.parts(int(self.headers["Content-Length"])):
            digest.update(part)
        self.answer(digest.hexdigest().encode() + b"\n")

    def parts(self, left):
        while left > 0 and (part := self.rfile.read(min(left, 65536))):
            yield part
            left -= len(part)

    def chunks(self):
        while length := int(self.rfile.readline().split(b";")[0], 16):
            yield from self.parts(length)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    do_POST = do_PUT

    def do_GET(self):
        self.answer(b"ready\n")

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    address = (sys.argv[1] if len(sys.argv) > 1 else "", int(sys.argv[2]) if len(sys.argv) > 2 else 8080)
    server = http.server.ThreadingHTTPServer
    server.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    server(address, Upload).serve_forever()
