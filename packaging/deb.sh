#!/bin/bash
# Makes the Debian packages of what cargo has built.
#   deb.sh BINARIES OUT      BINARIES: target/dist or target/release; the packages come to the folder OUT
# Environment: CSP_DEB_REVISION, appended to the version (such as +1), so that an upgrade can be tried.
set -euo pipefail
binaries=$(realpath "$1") out=$2
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -1)${CSP_DEB_REVISION:-}
tree=$out/csp-$version
rm -rf "$tree"
mkdir -p "$tree"
cp -r "$here/debian" "$tree/debian"
date=$(git -C "$here" log -1 --format=%cD 2> /dev/null || date -R)
printf 'csp (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- CSP engineers <csp@example.invalid>  %s\n' \
  "$version" "$date" > "$tree/debian/changelog"
"$here/install.sh" "$binaries" "$tree/installed" /usr
(cd "$tree" && dpkg-buildpackage --build=binary --unsigned-changes --no-check-builddeps > ../build.log 2>&1) ||
  { tail -30 "$out/build.log" >&2; exit 1; }
rm -rf "$tree"
ls "$out"/*.deb
