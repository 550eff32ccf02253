#!/bin/bash
# yamllint, and ansible-lint at profile production, over the collection. Its roles name each other by the collection's name, so it
# needs a place in a collections path.
set -euo pipefail
project=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place" "$project/ansible/.ansible"' EXIT
mkdir -p "$place/ansible_collections/csp"
ln -s "$project/ansible" "$place/ansible_collections/csp/cluster"
cd "$project/ansible"
yamllint --strict .
ANSIBLE_COLLECTIONS_PATH=$place ansible-lint --nocolor --offline
for playbook in playbooks/*.yml; do
    ANSIBLE_COLLECTIONS_PATH=$place ansible-playbook --syntax-check -i inventories/paper/hosts.yml \
        "$place/ansible_collections/csp/cluster/$playbook" > "$place/log" 2>&1 || { cat "$place/log" >&2; exit 1; }
done
