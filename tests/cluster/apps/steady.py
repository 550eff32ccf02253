"""One kept-alive HTTP connection, a request every 50 ms; a line for each answer: steady.py ADDRESS PORT PATH."""
import http.client
import sys
import time

address, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connection = http.client.HTTPConnection(address, port, timeout=6)
connection.connect()
connection.auto_open = 0  # when it ends, it has ended
try:
    while True:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        print("answer", answer.status, len(body), flush=True)
        time.sleep(0.05)
except Exception as error:
    print("ended", type(error).__name__, error, flush=True)
    sys.exit(1)
