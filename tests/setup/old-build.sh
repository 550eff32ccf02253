#!/bin/bash
# Builds the programs of an earlier commit to target/versions/COMMIT/release, once: tests of two builds together use them.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=$1
into=$PWD/target/versions/$commit
[ -e "$into/release/libcsp_sockfilter.so" ] && exit
git rev-parse --quiet --verify "$commit^{commit}" >/dev/null ||
  { echo "old-build: this clone has no commit $commit; fetch it, or name another one: make test-versions OLD=COMMIT" >&2; exit 1; }
source=$into/source
[ -e "$source/Cargo.toml" ] || git worktree add --force --detach "$source" "$commit"
cd "$source"
"${CARGO:-cargo}" build --release --locked --target-dir "$into" -p csp-network-node -p csp-proxy-node -p csp-app-node -p csp-sockfilter \
  -p csp-features
