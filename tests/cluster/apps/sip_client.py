"""SIP over TCP (RFC 3261): OPTIONS on kept connections and on new ones; each answer must be 200 and bear its request's CSeq.

sip_client.py ADDRESS PORT CONNECTIONS REQUESTS"""

import re
import socket
import sys
import threading

failures = []


def options(address, call, sequence):
    return (
        f"OPTIONS sip:test@{address} SIP/2.0\r\nVia: SIP/2.0/TCP client.invalid;branch=z9hG4bK{call}-{sequence};rport\r\nMax-Forwards: 70\r\n"
        f"From: <sip:c@client.invalid>;tag={call}\r\nTo: <sip:test@{address}>\r\nCall-ID: {call}\r\nCSeq: {sequence} OPTIONS\r\nContent-Length: 0\r\n\r\n"
    ).encode()


def answer(stream):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            raise ValueError(f"the connection ended: {head!r}")
        head += line
    return head.decode()


def client(address, port, number, requests):
    try:
        # Half of the requests on one connection, two at a time, the rest on a connection each.
        with socket.create_connection((address, port), 20) as connection, connection.makefile("rb") as stream:
            for sequence in range(0, requests // 2, 2):
                connection.sendall(options(address, number, sequence) + options(address, number, sequence + 1))
                for expected in (sequence, sequence + 1):
                    check(answer(stream), expected)
        for sequence in range(requests // 2, requests):
            with socket.create_connection((address, port), 20) as connection, connection.makefile("rb") as stream:
                connection.sendall(options(address, number, sequence))
                check(answer(stream), sequence)
    except Exception as error:  # pylint: disable=broad-except
        failures.append(repr(error))


def check(text, sequence):
    if not text.startswith("SIP/2.0 200 ") or not re.search(rf"CSeq: {sequence} OPTIONS", text):
        raise ValueError(text)


def main():
    address, port, connections, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    threads = [threading.Thread(target=client, args=(address, port, number, requests)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"{connections * requests} SIP requests on {connections} connections at once")


main()
