"""Sets and gets on many connections, every value compared: memcache_client.py ADDRESS PORT CONNECTIONS SECONDS."""

import hashlib
import os
import random
import socket
import sys
import threading
import time

ADDRESS, CONNECTIONS = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
END = time.monotonic() + float(sys.argv[4])
SIZES = (1, 100, 1024, 16 << 10, 100 << 10, 500 << 10)
gets, sets, errors = [0] * CONNECTIONS, [0] * CONNECTIONS, []


def read_value(file):
    """The answer to a get of one key."""
    head = file.readline().split()
    if len(head) != 4 or head[0] != b"VALUE":
        raise ValueError(f"answered {head}")
    value = file.read(int(head[3]))
    rest = file.read(7)
    if rest != b"\r\nEND\r\n":
        raise ValueError(f"the value ends with {rest}")
    return value


def work(at):
    """A value set, and got four times: by itself and among other requests sent at once."""
    with socket.create_connection(ADDRESS, timeout=10) as connection:
        file = connection.makefile("rb")
        while time.monotonic() < END:
            value = os.urandom(random.choice(SIZES))
            wanted = hashlib.sha256(value).digest()
            connection.sendall(b"set key%d 0 0 %d\r\n" % (at, len(value)) + value + b"\r\n")
            if (answer := file.readline()) != b"STORED\r\n":
                raise ValueError(f"set of {len(value)} bytes answered {answer}")
            sets[at] += 1
            for count in (1, 3):
                connection.sendall(b"get key%d\r\n" % at * count)
                for _ in range(count):
                    if hashlib.sha256(read_value(file)).digest() != wanted:
                        raise ValueError("another value than was set")
                    gets[at] += 1


def client(at):
    """One connection."""
    try:
        work(at)
    except Exception as error:
        errors.append(f"after {sets[at]} sets: {type(error).__name__}: {error}")


threads = [threading.Thread(target=client, args=(at,)) for at in range(CONNECTIONS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{sum(sets)} sets, {sum(gets)} gets")
for error in errors[:5]:
    print(error, file=sys.stderr)
sys.exit(bool(errors) or not all(gets))
