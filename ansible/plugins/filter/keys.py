# Copyright: the CSP developers
# SPDX-License-Identifier: Apache-2.0
"""Filters over the keys of the SAN: derives each node's key file from the cluster's, as `cspctl key derive` does."""

from __future__ import annotations

import hashlib
import hmac
import re

from ansible.errors import AnsibleFilterError
from ansible_collections.csp.cluster.plugins.filter.cluster import TIERS, daemon_user, node_id

# Numbers of the roles in derivations.
ROLES = {"network_node": 1, "app_node": 3}
LINE = re.compile(r"^(?:(?P<generation>[1-9][0-9]*)\s+cluster\s+)?(?P<key>[0-9a-fA-F]{64})$")


def cluster_keys(text):
    """Returns the keys of a file of cluster keys by generation, newest first."""
    found = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = LINE.match(line)
        if not match:
            raise AnsibleFilterError("a line of the cluster key file is neither 64 hex digits nor GENERATION cluster KEY")
        generation = int(match["generation"] or 1)
        if generation in found:
            raise AnsibleFilterError(f"the cluster key file has generation {generation} twice")
        found[generation] = bytes.fromhex(match["key"])
    if not found:
        raise AnsibleFilterError("the cluster key file has no key")
    return dict(sorted(found.items(), reverse=True))


def derived(key, label, *parts):
    """Returns the key that is derived from another one for these parts."""
    message = b"\0" + label + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hmac.digest(key, message, hashlib.sha256)


def node_key(cluster, tier, name):
    """Returns a node's key."""
    return derived(cluster, b"csp node key 1", bytes([ROLES[tier]]), name.encode())


def node_lines(keys, tier, name, network_nodes):
    """Returns the lines of a node's key file."""
    for generation, cluster in keys.items():
        if tier == "proxy_node":
            yield f"{generation} cluster {cluster.hex()}"
            continue
        yield f"{generation} node {tier.replace('_', '-')} {name} {node_key(cluster, tier, name).hex()}"
        if tier == "app_node":
            for other in sorted(network_nodes):
                link = derived(node_key(cluster, "network_node", other), b"csp link key 1", name.encode())
                yield f"{generation} link {other} {name} {link.hex()}"


def key_files(text, host, groups, hostvars, tiers=tuple(TIERS)):
    """Returns `path`, `owner` and `content` of the key file of each of a host's daemons that has one."""
    keys = cluster_keys(text)
    network_nodes = [node_id(other, "network_node", groups, hostvars) for other in groups.get("csp_network_nodes", [])]
    found = []
    for tier in ("proxy_node", "network_node", "app_node"):
        if tier in tiers and host in groups.get(f"csp_{tier}s", []):
            name = node_id(host, tier, groups, hostvars)
            content = "".join(f"{line}\n" for line in node_lines(keys, tier, name, network_nodes))
            found.append({"path": f"/etc/csp/{tier.replace('_', '-')}.key", "owner": daemon_user(tier, host, groups, hostvars), "content": content})
    return found


def shares_key(installed, content):
    """Whether two key files have a key in common, so that daemons with either can connect to each other."""
    return bool({line.split()[-1].lower() for line in installed.split("\n") if line.strip()} & {line.split()[-1] for line in content.split("\n") if line})


class FilterModule:
    def filters(self):
        return {"key_files": key_files, "shares_key": shares_key}
