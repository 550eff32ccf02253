"""Sessions with an IMAP server at the same time: each appends messages, fetches them and compares their digests.

Arguments: address, port, sessions, messages of each. Prints figures; fails on the first difference.
"""
import concurrent.futures, hashlib, imaplib, sys

ADDRESS, PORT, SESSIONS, MESSAGES = sys.argv[1], *map(int, sys.argv[2:5])
# Lengths with a line's end at the end, as messages have it.
LENGTHS = [100, 5000, 200000, 1 << 20]


def message(session, number):
    line = hashlib.sha256(b"%d %d" % (session, number)).hexdigest().encode()
    lines = LENGTHS[number % len(LENGTHS)] // (len(line) + 2) + 1
    return b"Subject: %d\r\n\r\n" % number + (line + b"\r\n") * lines


def expect(answer):
    assert answer[0] == "OK", answer
    return answer[1]


def talk(session):
    bytes_back = 0
    connection = imaplib.IMAP4(ADDRESS, PORT, timeout=20)
    user = f"user{session}"
    try:
        connection.login(user, "wrong")
        raise SystemExit("a wrong password was accepted")
    except imaplib.IMAP4.error:
        pass
    expect(connection.login(user, "secret"))
    expect(connection.select("INBOX"))
    for number in range(MESSAGES):
        expect(connection.append("INBOX", None, None, message(session, number)))
    expect(connection.noop())
    for number in range(MESSAGES):
        found = expect(connection.fetch(str(number + 1), "(BODY.PEEK[])"))[0][1]
        assert found == message(session, number), f"{user}: message {number} differs"
        bytes_back += len(found)
    connection.logout()
    return bytes_back


with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
    total = sum(pool.map(talk, range(SESSIONS)))
print(f"{SESSIONS} sessions, {SESSIONS * MESSAGES} messages there and back, {total} bytes")
