#!/bin/bash
# Files over 500 lines and functions over 70 are listed; one may stay longer with its reason in tests/lint/long-files.txt or
# tests/lint/long-functions.txt. A reason for what is short again is a mistake, too. Comments, which rustfmt does not wrap, have at most
# 110 columns, but for tables and drawings between ``` lines.
set -euo pipefail
cd "$(dirname "$0")/../.."
status=0

# check KIND MOST LIST: reads lines "NAME LINES" of what is longer, and compares their names with the list.
check() {
  local kind=$1 most=$2 list=tests/lint/long-$1s.txt name lines
  local -A longer=()
  while read -r name lines; do
    longer[$name]=$lines
    grep -q "^$name " "$list" && continue
    echo "sizes: $name has $lines lines (a $kind at most $most, or a reason in $list)" >&2
    status=1
  done
  while read -r name _; do
    [ -n "${longer[$name]-}" ] && continue
    echo "sizes: $name has at most $most lines: take it out of $list" >&2
    status=1
  done < "$list"
}

check file 500 < <(git ls-files '*.rs' | xargs wc -l | awk '$2 != "total" && $1 > 500 { print $2, $1 }')

# A function ends where a brace closes at its own indentation, as rustfmt writes it.
check function 70 < <(git ls-files '*.rs' | xargs awk '
  FNR == 1 { name = "" }
  name == "" && match($0, /^ *(pub(\([a-z ]+\))? )?((const|async|unsafe|extern "[A-Za-z]+") )*fn [a-z_0-9]+/) {
    indent = $0; sub(/[^ ].*/, "", indent)
    name = substr($0, RSTART, RLENGTH); sub(/.*fn /, "", name); start = FNR
    if ($0 ~ /[;}]$/) name = ""
    next
  }
  name != "" && ($0 == indent "}" || ($0 ~ /;$/ && $0 !~ /^ *[^ ].*[{(]/ && index($0, indent ")") == 1)) {
    if (FNR - start + 1 > 70) print FILENAME ":" name, FNR - start + 1
    name = ""
  }')

# Bytes from 0x80 to 0xbf are the second and later ones of a character.
if git ls-files '*.rs' | LC_ALL=C xargs awk '
  FNR == 1 { drawing = 0 }
  !/^ *\/\// { drawing = 0; next }
  /^ *\/\/[\/!]? *```/ { drawing = !drawing; next }
  { line = $0; gsub(/[\200-\277]/, "") }
  !drawing && length($0) > 110 && !/^ *\/\/[\/!]? *\|/ { print "sizes: " FILENAME ":" FNR ": a comment of more than 110 columns: " line }
' | grep . >&2; then
  status=1
fi
exit $status
