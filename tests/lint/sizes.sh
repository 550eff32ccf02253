#!/bin/bash
# Files over 500 lines are listed; a file may stay longer with its reason in tests/lint/long-files.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
status=0
while read -r lines file; do
  [ "$file" = total ] && continue
  if [ "$lines" -gt 500 ] && ! grep -q "^$file " tests/lint/long-files.txt; then
    echo "sizes: $file has $lines lines (at most 500, or a reason in tests/lint/long-files.txt)" >&2
    status=1
  fi
done < <(git ls-files '*.rs' | xargs wc -l)
exit $status
