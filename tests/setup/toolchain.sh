#!/bin/bash
# Checks that cargo is there and new enough for this workspace, and says what to install where it is not.
#   toolchain.sh CARGO
set -euo pipefail
cargo=${1:-cargo}
root=$(cd "$(dirname "$0")/../.." && pwd)
needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
how="install it with rustup (https://rustup.rs; Debian 12's own packages are too old): rustup toolchain install stable"
if ! command -v "$cargo" > /dev/null; then
  echo "a Rust toolchain is missing: '$cargo' was not found. CSP needs Rust $needed or later; $how" >&2
  exit 1
fi
found=$({ "$cargo" --version 2>/dev/null || true; } | awk '{print $2}')
if [ -z "$found" ]; then
  echo "'$cargo --version' failed. CSP needs Rust $needed or later; $how" >&2
  exit 1
fi
oldest=$(printf '%s\n%s\n' "$needed" "${found%%-*}" | sort -V | head -n 1)
if [ "$oldest" != "$needed" ]; then
  echo "Rust $found is too old: CSP needs $needed or later; $how" >&2
  exit 1
fi
