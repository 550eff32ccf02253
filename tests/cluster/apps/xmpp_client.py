"""XMPP clients in pairs: each logs in by SASL PLAIN and sends its partner messages of 1 B to 8 KiB, which must arrive whole and in order.

xmpp_client.py ADDRESS PORT DOMAIN PAIRS MESSAGES; users are u0, u1, ..., their password is "secret"."""

import base64
import re
import socket
import sys
import threading

failures = []


class Client:
    """One session."""

    def __init__(self, address, port, domain, user):
        self.domain, self.jid = domain, f"{user}@{domain}"
        self.connection = socket.create_connection((address, port), 20)
        self.buffer = ""
        self.open()
        secret = base64.b64encode(f"\0{user}\0secret".encode()).decode()
        self.send(f"<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>{secret}</auth>")
        self.until(r"<success[^>]*>")
        self.open()
        self.send("<iq type='set' id='b'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'><resource>r</resource></bind></iq>")
        self.until(r"<jid>[^<]*</jid>.*?</iq>")
        self.send("<presence/>")

    def send(self, text):
        self.connection.sendall(text.encode())

    def open(self):
        self.send(f"<?xml version='1.0'?><stream:stream to='{self.domain}' xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' version='1.0'>")
        self.until(r"</stream:features>")

    def until(self, pattern):
        """Returns the first match of `pattern`, which is taken out with what stands before it."""
        while True:
            found = re.search(pattern, self.buffer, re.DOTALL)
            if found:
                self.buffer = self.buffer[found.end() :]
                return found
            part = self.connection.recv(1 << 16)
            if not part:
                raise ValueError(f"the stream ended: {self.buffer[-200:]!r}")
            self.buffer += part.decode()


def pair(address, port, domain, number, messages):
    try:
        one, other = (Client(address, port, domain, f"u{2 * number + n}") for n in range(2))
        for count in range(messages):
            text = f"{number} {count} " + "x" * (1 << count % 14)
            for sender, receiver in ((one, other), (other, one)):
                sender.send(f"<message to='{receiver.jid}/r' type='chat'><body>{text}</body></message>")
                got = receiver.until(r"<body>([^<]*)</body>").group(1)
                if got != text:
                    raise ValueError(f"{got[:40]!r} came where {text[:40]!r} was sent")
    except Exception as error:  # pylint: disable=broad-except
        failures.append(repr(error))


def main():
    address, port, domain, pairs, messages = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    threads = [threading.Thread(target=pair, args=(address, port, domain, number, messages)) for number in range(pairs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"{2 * pairs * messages} messages between {2 * pairs} clients")


main()
