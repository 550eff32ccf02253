"""A client of length-prefixed messages, by plain sockets: each message is behind a Simple Open Framing Header.

frame_peer.py ask ADDRESS PORT COUNT              sends COUNT requests while it reads the answers; checks them, ends its stream first
frame_peer.py nonsense ADDRESS PORT               sends a request and then a length that cannot be; expects its answer or a reset
frame_peer.py publish ADDRESS PORT NAME COUNT     sends COUNT numbered messages
frame_peer.py subscribe ADDRESS PORT NAMES COUNT  until COUNT messages of each publisher; prints what each has sent
"""

import json
import socket
import struct
import sys
import threading

ENCODING = 0xEB50


def framed(body):
    return struct.pack(">IH", len(body) + 6, ENCODING) + body


def messages(stream):
    while header := stream.read(6):
        length, encoding = struct.unpack(">IH", header)
        if encoding != ENCODING:
            sys.exit(f"encoding type {encoding:#x}")
        body = stream.read(length - 6)
        if len(body) < length - 6:
            sys.exit("the stream ended within a message")
        yield body


def request(number):
    return b"request %d " % number + b"abcdefg" * (number * 37 % 3_000)


def ask(connection, count):
    def send():
        for number in range(count):
            connection.sendall(framed(request(number)))
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    answers = 0
    for answer in messages(connection.makefile("rb")):
        if answer != b"%d:" % answers + request(answers).upper():
            sys.exit(f"answer {answers} is {answer[:60]!r}")
        answers += 1
    sender.join()
    if answers != count:
        sys.exit(f"{answers} of {count} answers")
    print(answers)


def nonsense(connection):
    connection.sendall(framed(b"right") + b"\x00\x00\x00\x01\x00\x00")
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        print("reset")


def publish(connection, name, count):
    for number in range(count):
        connection.sendall(framed(b"%s %d " % (name.encode(), number) + b"x" * 600))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(4096):  # until the proxy has taken everything
        pass


def subscribe(connection, names, count):
    seen = {name: [] for name in names}
    connection.settimeout(30)
    for body in messages(connection.makefile("rb")):
        if body == b"warm":  # of a ZeroMQ publisher that waits until it is connected
            continue
        name, number, rest = body.split(b" ")
        if rest != b"x" * 600:
            sys.exit(f"message {number} of {name} has another content")
        seen[name.decode()].append(int(number))
        if all(len(numbers) >= count for numbers in seen.values()):
            break
    print(json.dumps(seen), flush=True)


def main():
    mode, address, port = sys.argv[1:4]
    connection = socket.create_connection((address, int(port)))
    if mode == "ask":
        ask(connection, int(sys.argv[4]))
    elif mode == "nonsense":
        nonsense(connection)
    elif mode == "publish":
        publish(connection, sys.argv[4], int(sys.argv[5]))
    else:
        subscribe(connection, sys.argv[4].split(","), int(sys.argv[5]))


main()
