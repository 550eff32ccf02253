#!/usr/bin/python
"""GET from an admin endpoint with this host's identity, by Python's own ssl."""

DOCUMENTATION = r"""
module: admin_get
short_description: GET from an admin endpoint of a CSP daemon
description:
  - Reads a path of an admin endpoint, with a certificate if one is given.
  - C(ansible.builtin.uri) of ansible-core before 2.16 cannot do that on hosts with Python 3.12 or later (Debian 13).
options:
  url:
    description: What to read, C(http://) or C(https://).
    type: str
    required: true
  ca:
    description: File of the authority that the server's certificate must come from.
    type: path
  certificate:
    description: File of the certificate to show.
    type: path
  key:
    description: File of its private key.
    type: path
  status:
    description: Statuses that are no failure.
    type: list
    elements: int
    default: [200]
  timeout:
    description: Bound of each step of the connection, and of the whole answer, in seconds.
    type: int
    default: 10
author: CSP (@csp)
"""

EXAMPLES = r"""
- name: Ask whether the proxy node is ready
  csp.cluster.admin_get:
    url: https://10.77.0.2:9102/readyz
    ca: /etc/csp/identity/proxy-node/ca.pem
    status: [200, 503]
"""

RETURN = r"""
status:
  description: Status of the answer; -1 if there was none.
  type: int
  returned: always
content:
  description: Body of the answer, at most 16 MiB.
  type: str
  returned: always
"""

import http.client
import ssl
import time
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule

CONTENT_LEN_MAX = 16 << 20
PIECE_LEN = 64 << 10


class Stay(urllib.request.HTTPRedirectHandler):
    """No redirect is followed."""

    def redirect_request(self, *_, **__):
        return None


def read(answer, deadline):
    """Returns the whole body, or fails."""
    pieces, length = [], 0
    while True:
        piece = answer.read1(PIECE_LEN)
        if not piece:
            break
        pieces.append(piece)
        length += len(piece)
        if length > CONTENT_LEN_MAX:
            raise ValueError("the answer is longer than 16 MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer is not complete in time")
    declared = answer.headers.get("Content-Length")
    if declared is not None and int(declared) != length:
        raise ValueError("the answer has {0} bytes instead of {1}".format(length, declared))
    return b"".join(pieces)


def get(url, ca, certificate, key, timeout):
    """Returns status and body. Redirects are not followed, proxies of the environment not used."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("only http:// and https:// can be read")
    deadline = time.monotonic() + timeout
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), Stay)
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(url, timeout=timeout) as answer:
            return answer.status, read(answer, deadline)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, read(error, deadline)


def main():
    """Runs the module."""
    options = {
        "url": {"type": "str", "required": True},
        "ca": {"type": "path"},
        "certificate": {"type": "path"},
        "key": {"type": "path", "no_log": False},
        "status": {"type": "list", "elements": "int", "default": [200]},
        "timeout": {"type": "int", "default": 10},
    }
    together = [("certificate", "key")]
    module = AnsibleModule(argument_spec=options, required_together=together, supports_check_mode=True)
    asked = module.params
    try:
        status, body = get(asked["url"], asked["ca"], asked["certificate"], asked["key"], asked["timeout"])
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        module.fail_json(msg="{0}: {1}".format(asked["url"], reason), status=-1, content="")
    content = body.decode("utf-8", "replace")
    if status not in asked["status"]:
        answer = "{0} answers with status {1}".format(asked["url"], status)
        module.fail_json(msg=answer, status=status, content=content)
    module.exit_json(changed=False, status=status, content=content)


if __name__ == "__main__":
    main()
