#!/bin/sh
# Runs every fuzz target for SECONDS (default 60), or only the given targets: run.sh [SECONDS] [TARGET...]
# They begin with the examples of the targets. A finding ends the run and is stored in libfuzzer/artifacts/TARGET/.
set -eu
cd "$(dirname "$0")"
cargo=${CARGO:-cargo}
seconds=${1:-60}
[ $# -eq 0 ] || shift
"$cargo" +nightly fuzz --version >/dev/null 2>&1 || {
    echo "SKIPPED fuzz: needs a nightly compiler and cargo-fuzz: rustup toolchain install nightly; cargo install cargo-fuzz" >&2
    exit 69
}
CSP_FUZZ_CORPUS=$PWD/libfuzzer/corpus "$cargo" test --quiet --release --locked -p csp-fuzz -p csp-features --test seeded examples_are_written
"$cargo" +nightly fuzz build --fuzz-dir libfuzzer
targets=${*:-$("$cargo" +nightly fuzz list --fuzz-dir libfuzzer)}
for target in $targets; do
    echo "== $target"
    "$cargo" +nightly fuzz run --fuzz-dir libfuzzer "$target" -- -max_total_time="$seconds" -max_len=32768 -print_final_stats=1
done
