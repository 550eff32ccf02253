#!/bin/bash
# Licences, sources, bans and duplicates of what CSP depends on, by deny.toml. Advisories are not looked up: they change without this tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
if ! "$cargo" deny --version > /dev/null 2>&1; then
  echo "SKIPPED deny: cargo-deny is not installed: '$cargo install --locked cargo-deny' compiles it in some minutes; a program for Linux is at" \
    "https://github.com/EmbarkStudios/cargo-deny/releases, to be put on PATH. Debian has no package of it." >&2
  exit 69
fi
exec "$cargo" deny --locked check licenses sources bans
