#!/bin/bash
# The sans-I/O crates must build where there is no operating system: a clock, socket or thread does not compile there.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=wasm32-unknown-unknown
if ! ls "$(rustc --print sysroot)/lib/rustlib/$target" >/dev/null 2>&1; then
  rustup target add $target >/dev/null 2>&1 ||
    { echo "SKIPPED purity: the $target target is not installed and cannot be fetched" >&2; [ "${CSP_NO_SKIP:-}" != 1 ]; exit; }
fi
for crate in "$@"; do
  cargo check --quiet --release --locked --target $target -p "$crate"
  echo "purity: $crate builds for $target"
done
