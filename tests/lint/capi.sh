#!/bin/bash
# The functions that csp.h declares, libcsp.map exports, exports.rs defines and the manual describes are the same.
set -euo pipefail
cd "$(dirname "$0")/../../libcsp/capi"
declared=$(sed -e ':a;s|/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/||g;/\/\*/{N;ba}' include/csp.h | grep -oE '\bcsp_[a-z_]+\(' | tr -d '(' | sort -u)
exported=$(grep -oE '\bcsp_[a-z_]+' libcsp.map | sort -u)
defined=$(grep -oE 'extern "C" fn csp_[a-z_]+' src/exports.rs | grep -oE 'csp_[a-z_]+' | sort -u)
described=$(grep -hoE '^\.F[no] csp_[a-z_]+' man/*.3 | grep -oE 'csp_[a-z_]+' | sort -u)
status=0
check() {
  diff <(echo "$declared") <(echo "$2") > /dev/null && return
  echo "capi: csp.h (<) and $1 (>) differ:" >&2
  diff <(echo "$declared") <(echo "$2") >&2 || status=1
}
check libcsp.map "$exported"
check src/exports.rs "$defined"
check "the manual" "$described"
exit $status
