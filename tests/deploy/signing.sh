#!/bin/bash
# The collection's local repository: apt takes what the controller has signed, and neither another index nor another package.
set -euo pipefail
project=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
chmod 0755 "$place"
cd "$place"
mkdir -p package/DEBIAN repository apt/lists/partial apt/cache/archives/partial
fail() { echo "signing: $*" >&2; exit 1; }
make_package() { # VERSION
  printf 'Package: csp-signing-test\nVersion: %s\nArchitecture: all\nMaintainer: CSP <csp@example.invalid>\nDescription: test\n' "$1" > package/DEBIAN/control
  dpkg-deb --build --root-owner-group package csp-signing-test.deb > log
}
publish() { cp csp-signing-test.deb keys/Packages keys/InRelease repository/; }
sign() { "$project/ansible/roles/common/files/sign-packages" keys csp-signing-test.deb; }
apt() {
  apt-get -o Dir::Etc::sourcelist="$place/apt/csp.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$place/apt/lists" \
    -o Dir::Cache="$place/apt/cache" -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any --quiet "$@" > log 2>&1
}
fetches() { rm -rf apt/cache/archives/*.deb; apt update && apt install --reinstall --download-only --yes csp-signing-test; }
printf 'Types: deb\nURIs: file:%s/repository\nSuites: ./\nSigned-By: %s/keys/csp-packages.asc\nCheck-Date: no\n' "$place" "$place" > apt/csp.sources

make_package 1
[ "$(sign)" = signed ] || fail "the first run signs nothing"
[ -z "$(sign)" ] || fail "a second run signs again"
[ "$(stat --format=%a keys/key.asc)" = 600 ] || fail "others may read the secret key"
chmod 0755 keys
publish
fetches || { cat log >&2; fail "apt refuses what was signed"; }
cp keys/csp-packages.asc first.asc
make_package 2
[ "$(sign)" = signed ] || fail "a new package is not signed"
cmp -s keys/csp-packages.asc first.asc || fail "the key has changed"
publish
fetches || { cat log >&2; fail "apt refuses the new package"; }

make_package 3
cp csp-signing-test.deb repository/
! fetches || fail "apt takes a package that nobody has signed"
publish
sed -i 's/^Version: .*/Version: 9/' repository/Packages
! fetches || fail "apt takes an index that nobody has signed"
rm -rf other && mkdir other && "$project/ansible/roles/common/files/sign-packages" other csp-signing-test.deb > log
cp other/Packages other/InRelease repository/
! fetches || fail "apt takes an index of another key"
echo "signing: apt takes what the controller has signed, and nothing else"
