"""A server of HTTPS: tls_server.py ADDRESS PORT CERTIFICATE KEY [CA]. GET answers with the name that the client
asked for (SNI), and the subject of its certificate if CA is given."""

import http.server
import ssl
import sys

ASKED = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f"asked for {ASKED.get(id(self.connection.context), '')}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def note(_, name, context):
    ASKED[id(context)] = name


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[3], sys.argv[4])
context.sni_callback = note
server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
