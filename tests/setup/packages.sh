#!/bin/bash
# Installs those of the named Debian packages that are missing. Services that packages bring are not started: the tests
# run their own, on hosts of their own.
set -euo pipefail
# What is installed, and what it provides: a release may have renamed a package (librdmacm1t64 provides librdmacm1).
installed=$(dpkg-query -W -f='${db:Status-Abbrev}, ${Package}, ${Provides}\n' | sed -n 's/^ii *//p' | sed 's/ *([^)]*)//g')
missing=()
for package in "$@"; do
  grep -qE ", ${package//+/\\+}(,|\$)" <<< "$installed" || missing+=("$package")
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
