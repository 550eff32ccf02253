#!/bin/bash
# All cases of h2spec against examples/echo.rs: h2spec.sh [OPTIONS OF H2SPEC]. 69 (EX_UNAVAILABLE): h2spec is not there, and Go neither.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=v2.2.1+incompatible
target=${CARGO_TARGET_DIR:-$PWD/target}
h2spec=$target/h2spec/bin/h2spec
if [ ! -x "$h2spec" ]; then
  command -v go >/dev/null || { echo "SKIPPED h2spec: neither it nor Go is installed" >&2; exit 69; }
  GOBIN=$target/h2spec/bin GOFLAGS=-mod=mod go install "github.com/summerwind/h2spec/cmd/h2spec@$version"
fi
cargo build --release --locked -p csp-features -p csp-http2 --example echo
log=$(mktemp)
"$target/release/examples/echo" 127.0.0.1:0 > "$log" &
server=$!
trap 'kill $server; rm -f "$log"' EXIT
until grep -q listening "$log"; do kill -0 $server; sleep 0.05; done
port=$(sed -n 's/.*://p;q' "$log")
"$h2spec" -S -h 127.0.0.1 -p "$port" -o 2 "$@" | tee "$log.out" | tail -n 1
failed=$(sed -n '/^Failures/,$p' "$log.out")
rm -f "$log.out"
[ -z "$failed" ] || { echo "$failed"; exit 1; }
