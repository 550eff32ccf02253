#!/bin/bash
# Whatever part of the workspace is built beside csp-features gets its libraries with the features that the whole workspace gets.
# Else `make test` after `make demo`, or a test of one crate, compiles libraries and all that depends on them again.
set -euo pipefail
cd "$(dirname "$0")/../.."
chosen() { # PACKAGES...
  cargo tree --locked --edges normal,build,dev --prefix none --format '{p} {f}' "$@" | sed -e 's/ (\*)$//' -e 's/ (proc-macro)//' | grep -v " ($PWD" | sort -u
}
whole=$(mktemp)
trap 'rm -f "$whole"' EXIT
chosen --workspace > "$whole"
failed=0
for crate in $(cargo metadata --locked --no-deps --format-version 1 | grep -o '"name":"csp-[a-z0-9-]*","version"' | cut -d '"' -f 4); do
  other=$(chosen -p "$crate" -p csp-features | comm -23 - "$whole")
  [ -z "$other" ] && continue
  failed=1
  while read -r library version features; do
    echo "features: $crate alone gets $library $version with '$features', the workspace with" \
      "'$(grep "^$library $version " "$whole" | cut -d ' ' -f 3 | tail -n 1)': add them to tests/features/Cargo.toml" >&2
  done <<< "$other"
done
exit $failed
