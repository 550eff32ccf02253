#!/bin/sh
# Runs every fuzz target for SECONDS (default 60), or only the given targets: run.sh [SECONDS] [TARGET...]
# A finding ends the run and is stored in artifacts/TARGET/.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -eq 0 ] || shift
cargo +nightly fuzz --version >/dev/null 2>&1 || {
    echo "SKIPPED fuzz: needs a nightly compiler and cargo-fuzz: rustup toolchain install nightly; cargo install cargo-fuzz" >&2
    exit 69
}
cargo +nightly fuzz build --fuzz-dir .
targets=${*:-$(cargo +nightly fuzz list --fuzz-dir .)}
for target in $targets; do
    echo "== $target"
    cargo +nightly fuzz run --fuzz-dir . "$target" -- -max_total_time="$seconds" -max_len=2048 -print_final_stats=1
done
