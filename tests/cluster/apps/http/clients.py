"""Python's http.client and requests (urllib3): kept connections, answers and uploads that are whole. Arguments: URL CA FILE"""
import concurrent.futures
import hashlib
import http.client
import ssl
import sys
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

base, ca, path = sys.argv[1:]
data = open(path, "rb").read()
digest = hashlib.sha256(data).hexdigest()
url = urlsplit(base)


def connection():
    if url.scheme == "https":
        return http.client.HTTPSConnection(url.hostname, url.port, timeout=30, context=ssl.create_default_context(cafile=ca))
    return http.client.HTTPConnection(url.hostname, url.port, timeout=30)


def plain():
    peer, count, socket = connection(), 0, None
    for _ in range(200):
        for method in "GET", "HEAD":
            peer.request(method, "/1KiB")
            answer = peer.getresponse()
            assert answer.status == 200 and len(answer.read()) == (1024 if method == "GET" else 0), answer.status
            assert socket in (None, peer.sock), "a connection of its own"
            socket, count = peer.sock, count + 1
    peer.request("GET", "/big")
    assert hashlib.sha256(peer.getresponse().read()).hexdigest() == digest
    for body, chunked in ((data, False), ((data[at : at + 100_000] for at in range(0, len(data), 100_000)), True)):
        peer.request("POST", "/upload", body=body, encode_chunked=chunked, headers={"Transfer-Encoding": "chunked"} if chunked else {})
        answer = peer.getresponse()
        assert answer.read().decode().strip() == digest, answer.status
    return count + 3


def by_requests():
    with requests.Session() as session:
        session.mount(base, HTTPAdapter(pool_connections=1, pool_maxsize=16, pool_block=True, max_retries=0))
        session.verify, session.trust_env = ca, False

        def one(_):
            answer = session.get(base + "/1KiB", timeout=30)
            return answer.status_code == 200 and len(answer.content) == 1024

        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            assert all(threads.map(one, range(1000)))
        answer = session.put(base + "/upload", data=(data[at : at + 65536] for at in range(0, len(data), 65536)), timeout=60)
        assert answer.text.strip() == digest
        opened = session.get_adapter(base).poolmanager.connection_from_url(base).num_connections
        assert opened <= 17, opened
        return 1001, opened


of_client = plain()
of_requests, opened = by_requests()
print(f"http.client: {of_client} requests on 1 connection; requests: {of_requests} on {opened}; 0 failed")
