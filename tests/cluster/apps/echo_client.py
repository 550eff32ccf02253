"""Clients of an echo server: echo_client.py ADDRESS PORT CLIENTS BYTES. Each sends all its bytes while it reads."""

import os
import socket
import sys
import threading

ADDRESS = (sys.argv[1], int(sys.argv[2]))
CLIENTS, LENGTH = int(sys.argv[3]), int(sys.argv[4])
good = []


def client():
    """One connection: everything there and back, then both ends."""
    data = os.urandom(LENGTH)
    with socket.create_connection(ADDRESS, timeout=20) as connection:
        def send():
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        sender.join()
        good.append(b"".join(parts) == data)


threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{sum(good)} of {CLIENTS} came back")
sys.exit(sum(good) != CLIENTS)
