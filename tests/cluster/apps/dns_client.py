"""Queries by TCP (RFC 7766): connections at the same time, each with queries one after another and some sent at once.

Arguments: address, port, name, the address that the name has, connections, queries of each.
"""
import concurrent.futures, socket, struct, sys

ADDRESS, PORT, NAME, WANTED = sys.argv[1], int(sys.argv[2]), sys.argv[3], socket.inet_aton(sys.argv[4])
CONNECTIONS, QUERIES = int(sys.argv[5]), int(sys.argv[6])
AT_ONCE = 4


def query(number):
    name = b"".join(bytes([len(part)]) + part.encode() for part in NAME.split("."))
    body = struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + name + b"\0" + struct.pack(">2H", 1, 1)
    return struct.pack(">H", len(body)) + body


def exactly(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "the server closed the connection"
        data += part
    return data


def check(connection, number):
    answer = exactly(connection, struct.unpack(">H", exactly(connection, 2))[0])
    found, flags, _, answers = struct.unpack(">4H", answer[:8])
    assert (found, flags & 0x800F, answers) == (number, 0x8000, 1), answer
    assert answer.endswith(b"\0\4" + WANTED), answer


def talk(first):
    with socket.create_connection((ADDRESS, PORT), timeout=20) as connection:
        for number in range(first, first + QUERIES):
            connection.sendall(query(number))
            check(connection, number)
        connection.sendall(b"".join(query(number) for number in range(AT_ONCE)))
        for number in range(AT_ONCE):
            check(connection, number)


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(talk, range(0, CONNECTIONS * QUERIES, QUERIES)))
print(f"{CONNECTIONS} connections, {CONNECTIONS * (QUERIES + AT_ONCE)} queries by TCP")
