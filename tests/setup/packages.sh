#!/bin/bash
# Installs those of the named Debian packages that are missing. Services that packages bring are not started: the tests
# run their own, on hosts of their own.
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || { echo "missing Debian packages: ${missing[*]}; run this as root, or install them" >&2; exit 1; }
echo "installing from Debian: ${missing[*]}"
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' > $policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
