#!/bin/bash
# Which crates may depend on which: read from the manifests. ARCHITECTURE.md draws the same floors.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The floor of each crate.
declare -A floor
floors() { local name=$1; shift; for crate in "$@"; do floor[$crate]=$name; done; }
floors shared csp-types csp-wire csp-vi csp-transport csp-app csp-capi csp-config csp-api csp-events csp-identity csp-telemetry csp-election
floors packets csp-classify csp-plugins
floors messages csp-handlers csp-formats csp-queries csp-operators csp-specialiser csp-sandbox csp-guest
floors policy csp-policy
floors planner csp-planner
floors control csp-control csp-daemon csp-authority
floors modules csp-modules csp-plugin-modules
floors network csp-network-node csp-network-core csp-lan csp-xdp
floors proxy csp-proxy-node csp-proxy-core csp-tcp csp-tls csp-messages csp-quality csp-zmtp csp-http csp-http2 csp-filters csp-cache csp-gateway csp-services
floors edge csp-edge-node
floors app csp-app-node csp-context csp-plugin-host csp-sockfilter
floors mgmt csp-mgmt-node
floors tests csp-support csp-features csp-simulation csp-evaluation csp-conformance csp-models csp-fuzz csp-cluster csp-interop csp-performance csp-perf \
  csp-rdma-guests

# What a floor may depend on beside itself. Tests may use everything.
declare -A may=(
  [shared]="" [packets]="shared" [messages]="shared" [policy]="shared packets" [planner]="shared policy messages"
  [control]="shared policy" [modules]="shared packets control" [network]="shared packets policy control modules"
  [proxy]="shared messages policy planner control modules" [app]="shared packets policy control modules"
  [mgmt]="shared packets messages policy planner control"
  [edge]="shared control modules network proxy"
)

# Single dependencies beyond that, each with its reason.
declare -A except=(
  [csp-sandbox:csp-classify]="packet plug-ins are supplied as WebAssembly too, and share the engine"
  [csp-sandbox:csp-plugins]="packet plug-ins are supplied as WebAssembly too, and share the engine"
  [csp-modules:csp-sandbox]="the engine of supplied modules, for packets and messages"
  [csp-plugin-modules:csp-sandbox]="supplied packet plug-ins"
  [csp-policy:csp-handlers]="the numbers of contexts, stages and blocks, by which bounds are checked"
  [csp-mgmt-node:csp-zmtp]="events are published over ZeroMQ"
  [csp-planner:csp-filters]="filters are compiled before a policy is published"
  [csp-planner:csp-http]="routes are compiled before a policy is published"
  [csp-context:csp-handlers]="a context runs handlers"
  [csp-context:csp-sandbox]="a context runs supplied handlers"
)
# The same for what only tests and benches use.
declare -A except_dev=(
  [csp-services:csp-context]="the broker against the program that it starts stages in"
  [csp-network-node:csp-plugin-host]="a worker against the program that it sends packets to"
  [csp-telemetry:csp-authority]="certificates for the tests of TLS"
  [csp-sockfilter:csp-app-node]="the filter against the agent"
  [csp-operators:csp-messages]="operators on the plane that runs them"
  [csp-operators:csp-quality]="conditions of flows against the classifier that they are made for"
  [csp-sandbox:csp-messages]="supplied handlers on the plane that runs them"
)

# What must not be linked at all, however indirectly: a crate, and what it does without.
without=(
  "csp-policy: csp-queries csp-operators csp-formats wasmtime"
  "csp-control: csp-queries csp-operators csp-formats wasmtime"
  "csp-app-node: csp-planner csp-queries csp-operators csp-formats csp-sandbox wasmtime"
  "csp-sockfilter: csp-control csp-policy csp-planner csp-queries csp-operators csp-sandbox wasmtime"
  "csp-capi: csp-control csp-policy csp-planner csp-queries csp-operators csp-sandbox wasmtime"
  "csp-network-node: csp-planner csp-queries csp-operators csp-specialiser"
  "csp-context: csp-planner csp-queries csp-operators csp-specialiser"
  "csp-mgmt-node: csp-sandbox csp-specialiser csp-messages csp-services wasmtime"
)

status=0
complain() { echo "layers: $*" >&2; status=1; }

dependencies() { # MANIFEST SECTION: the names in one section of a manifest
  sed -n "/^\[$2\]/,/^\[/p" "$1" | sed -n 's/^\([a-z0-9_-]*\)[. =].*/\1/p'
}

declare -A links
while read -r manifest; do
  crate=$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)
  [ "$crate" ] && [[ "$manifest" != tests/fuzz/libfuzzer/* ]] || continue
  of=${floor[$crate]:-}
  [ "$of" ] || { complain "$crate stands on no floor: name it in tests/lint/layers.sh"; continue; }
  links[$crate]=$(dependencies "$manifest" dependencies | tr '\n' ' ')
  [ "$of" = tests ] && continue
  for kind in dependencies dev-dependencies; do
    for other in $(dependencies "$manifest" $kind | grep '^csp-' || true); do
      to=${floor[$other]:-}
      [ "$to" = "$of" ] || [[ " ${may[$of]} " == *" $to "* ]] || [ "${except[$crate:$other]:-}" ] && continue
      [ $kind = dev-dependencies ] && { [ "$to" = tests ] || [ "${except_dev[$crate:$other]:-}" ]; } && continue
      complain "$manifest: $crate ($of) depends on $other ($to) in [$kind]; $of may depend on: ${may[$of]:-itself alone}"
    done
  done
done < <(git ls-files '*Cargo.toml')

for entry in "${without[@]}"; do
  crate=${entry%%:*}
  declare -A seen=()
  next=("$crate")
  while [ ${#next[@]} -gt 0 ]; do
    at=${next[0]}; next=("${next[@]:1}")
    for other in ${links[$at]:-}; do
      [ "${seen[$other]:-}" ] || { seen[$other]=$at; next+=("$other"); }
    done
  done
  for forbidden in ${entry#*:}; do
    [ "${seen[$forbidden]:-}" ] && complain "$crate links $forbidden, by ${seen[$forbidden]}"
  done
done
exit $status
