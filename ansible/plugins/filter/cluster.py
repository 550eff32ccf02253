# Copyright: the CSP developers
# SPDX-License-Identifier: Apache-2.0
"""Filters over the inventory, the management node's answers and metrics."""

from __future__ import annotations

import re

from ansible.errors import AnsibleFilterError

# Tiers by role name, each with the suffix of its node ids on a host of several tiers.
TIERS = {"mgmt_node": "mn", "proxy_node": "pn", "network_node": "nn", "app_node": "an"}
# The user that each tier's daemon runs as.
USERS = {"mgmt_node": "csp-mgmt", "proxy_node": "csp-proxy", "network_node": "csp-network", "app_node": "root"}
# The tiers that one process runs on a host with csp_edge, and its user.
EDGE_TIERS = ("proxy_node", "network_node")
EDGE_USER = "csp-proxy"
FOLLOWS_POLICY = ("network-node", "proxy-node", "app-node")


def host_addresses(hosts, hostvars, *names, optional=False):
    """Returns for each host the first of the variables `names` that it has."""
    found = []
    for host in hosts:
        if not host:
            continue
        values = [str(hostvars[host][name]) for name in names if hostvars[host].get(name)]
        if values:
            found.append(values[0])
        elif not optional:
            raise AnsibleFilterError(f"host {host} has no variable {' or '.join(names)}")
    return found


def host_names(hosts, hostvars):
    """Returns each host's name within node ids: `csp_host_name` of the inventory, else its short name."""
    return [str(hostvars[host].get("csp_host_name") or host.split(".")[0].lower()) for host in hosts]


def is_edge(host, groups, hostvars):
    """Whether one process runs the network node and the proxy node of a host: `csp_edge` is set, and it has both."""
    wanted = str(hostvars[host].get("csp_edge", False)).lower() in ("true", "yes", "1")
    return wanted and all(host in groups.get(f"csp_{tier}s", []) for tier in EDGE_TIERS)


def daemon(tier, host, groups, hostvars):
    """Returns the name of the program, unit and package that runs a tier on a host."""
    edge = tier in EDGE_TIERS and is_edge(host, groups, hostvars)
    return "csp-edge-node" if edge else f"csp-{tier.replace('_', '-')}"


def daemon_user(tier, host, groups, hostvars):
    """Returns the user that a tier runs as on a host."""
    return EDGE_USER if tier in EDGE_TIERS and is_edge(host, groups, hostvars) else USERS[tier]


def node_id(host, tier, groups, hostvars):
    """Returns the node id of a tier on a host: the variable `<tier>_id`, else the host's name, with a suffix if the host
    has several tiers."""
    given = hostvars[host].get(f"{tier}_id")
    if given:
        return str(given)
    several = sum(host in groups.get(f"csp_{name}s", []) for name in TIERS) > 1
    name = host_names([host], hostvars)[0]
    return f"{name}-{TIERS[tier]}" if several else name


def node_ids(groups, hostvars, removed=()):
    """Returns the ids of all nodes of the inventory but those of the hosts `removed`."""
    hosts = [(tier, host) for tier in TIERS for host in groups.get(f"csp_{tier}s", []) if host not in removed]
    return [node_id(host, tier, groups, hostvars) for tier, host in hosts]


def node_names(groups, hostvars, removed=()):
    """Returns ROLE/ID of all nodes of the inventory but those of the hosts `removed`: the names of their users in etcd."""
    hosts = [(tier, host) for tier in TIERS for host in groups.get(f"csp_{tier}s", []) if host not in removed]
    return [f"{tier.replace('_', '-')}/{node_id(host, tier, groups, hostvars)}" for tier, host in hosts]


def node_identities(host, groups, hostvars, directory):
    """Returns the identities of the daemons of a host, as the role `identity` takes them; each has a directory in `directory`."""
    found = []
    for tier in USERS:
        if host not in groups.get(f"csp_{tier}s", []):
            continue
        role = tier.replace("_", "-")
        names = ("csp_admin_address", "csp_san_address")
        addresses = [str(hostvars[host][name]) for name in names if hostvars[host].get(name)]
        found.append(
            {
                "role": role,
                "id": node_id(host, tier, groups, hostvars),
                "directory": f"{directory}/{role}",
                "owner": daemon_user(tier, host, groups, hostvars),
                "addresses": sorted(set(addresses)),
                "names": [str(name) for name in hostvars[host].get(f"{tier}_names", [])],
            }
        )
    return found


def identity_source(holder, pki):
    """Returns the directory of the authority `pki` that has the identity of `holder`."""
    return f"{pki}/issued/{holder['role']}/{holder['id']}"


def identity_targets(files, holders, pki):
    """Returns for each file of an identity its `path`, and `directory` and `owner` on the host."""
    found = []
    for holder in holders:
        source = identity_source(holder, pki) + "/"
        own = [path for path in files if path.startswith(source)]
        found += [{"path": path, "directory": holder["directory"], "owner": holder["owner"]} for path in own]
    return found


def bracketed(address):
    """Returns an address as it is written before a port."""
    return f"[{address}]" if ":" in address else address


def urls(addresses, scheme, port):
    """Returns `scheme://ADDRESS:port` for each address."""
    return [f"{scheme}://{bracketed(address)}:{port}" for address in addresses]


def of_family(addresses, family):
    """Returns the addresses of one family, 4 or 6, sorted and each once."""
    return sorted({address for address in addresses if (":" in address) == (family == 6)})


def metric_sum(text, names):
    """Returns the sum of all samples of the metrics `names` in Prometheus text."""
    total = 0.0
    for line in text.splitlines():
        match = re.match(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)", line)
        if match and match.group(1) in names:
            total += float(match.group(2))
    return total


def started(document, node):
    """Returns when `node` started, in Unix milliseconds; 0 if it is not registered."""
    return next((entry["started_unix_ms"] for entry in document["nodes"] if entry["id"] == node), 0)


def node_problems(document, ids, generation=0, started_after=0, must_serve=()):
    """Returns why nodes are not in service, a line each; an empty list if all are.

    `document` is `cspctl nodes --output json`. A node is in service when it is registered and ready, started after
    `started_after` (Unix milliseconds) and, if it follows the policy, has acknowledged `generation` as active. Those of `must_serve` do
    not drain.
    """
    nodes = {entry["id"]: entry for entry in document["nodes"]}
    problems = []
    for node in ids:
        entry = nodes.get(node)
        if entry is None:
            problems.append(f"{node} is not registered")
        elif entry["state"] != "ready":
            problems.append(f"{node} is {entry['state']}: {entry.get('detail', '')}")
        elif entry["draining"] and node in must_serve:
            problems.append(f"{node} drains: `cspctl resume {node}` takes it back into service")
        elif entry["started_unix_ms"] <= started_after:
            problems.append(f"{node} has not been restarted")
        elif generation and entry["role"] in FOLLOWS_POLICY and not serves(entry, generation):
            state = entry.get("policy_state") or "no state"
            problems.append(f"{node} is at generation {entry['policy_generation']} ({state}), not {generation}")
    return problems


def serves(entry, generation):
    return entry["policy_generation"] == generation and entry.get("policy_state") == "active"


def vips_held(document, node):
    """Returns the names of the VIP groups that a network node holds. `document` is `cspctl vips --output json`."""
    return [group["name"] for group in document["groups"] if node in (group["holder"], *group.get("others", []))]


def vips_movable(document, node, nodes):
    """Returns the names of the VIP groups that a network node holds and another one can take over: one that takes part in the
    group's election, is ready and does not drain. `nodes` is `cspctl nodes --output json`."""
    able = {entry["id"] for entry in nodes["nodes"] if entry["state"] == "ready" and not entry["draining"]} - {node}
    heirs = {group["name"]: able & set(group["nodes"]) for group in document["groups"]}
    return [name for name in vips_held(document, node) if heirs[name]]


def vips_left(document, node, names):
    """Returns why the VIP groups `names` are not at other network nodes than `node` yet, a line each; an empty list if all are."""
    problems = [f"{node} does not say what it holds: {silent['error']}" for silent in document.get("unreachable", []) if silent["node"] == node]
    held = vips_held(document, node)
    for group in document["groups"]:
        if group["name"] in names and group["name"] in held:
            problems.append(f"VIP group {group['name']} is still at {node}")
        elif group["name"] in names and not group["holder"]:
            problems.append(f"no network node answers for VIP group {group['name']}")
    return problems


class FilterModule:
    def filters(self):
        return {
            "host_addresses": host_addresses,
            "host_names": host_names,
            "is_edge": is_edge,
            "daemon": daemon,
            "node_id": node_id,
            "node_ids": node_ids,
            "node_names": node_names,
            "node_identities": node_identities,
            "identity_source": identity_source,
            "identity_targets": identity_targets,
            "bracketed": bracketed,
            "urls": urls,
            "of_family": of_family,
            "metric_sum": metric_sum,
            "started": started,
            "node_problems": node_problems,
            "vips_held": vips_held,
            "vips_movable": vips_movable,
            "vips_left": vips_left,
        }
