#!/bin/bash
# Installs what cargo has built below a directory, as `make install DESTDIR=` does, and looks whether all of it is there and fits.
#   install.sh BINARIES      BINARIES: target/dist or target/release
set -euo pipefail
binaries=$(realpath "$1")
project=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$project/packaging/install.sh" "$binaries" "$place" /opt/csp
root=$place/opt/csp

wrong=0
check() { # TEXT COMMAND...
  local text=$1
  shift
  "$@" > "$place/log" 2>&1 || { echo "make install: $text" >&2; cat "$place/log" >&2; wrong=1; }
}

for program in bin/cspctl bin/csp-run sbin/csp-{network,proxy,edge,app,mgmt}-node; do
  name=${program#*/}
  check "$program does not start" "$root/$program" --version
  check "$name has no manual page" test -s "$(echo "$root"/share/man/man[18]/"$name".[18])"
  check "$name has no completions for bash" bash -c "source $root/share/bash-completion/completions/$name && complete -p $name"
  check "$name has no completions for zsh" grep -q "^#compdef $name" "$root/share/zsh/vendor-completions/_$name"
  check "$name has no completions for fish" grep -q "complete -c $name" "$root/share/fish/vendor_completions.d/$name.fish"
done
for tier in network-node proxy-node edge-node app-node mgmt-node; do
  unit=$root/lib/systemd/system/csp-$tier.service
  check "$unit does not start what was installed" grep -q "^ExecStart=/opt/csp/sbin/csp-$tier " "$unit"
done
for tier in network-node proxy-node app-node mgmt-node; do
  check "the example of $tier is missing" test -s "$root/share/doc/csp-$tier/examples/$tier.yaml"
done
check "the drop-in names another filter" grep -q "/opt/csp/lib/csp/libcsp_sockfilter.so" "$root/share/doc/csp-app-node/examples/accelerate.conf"
check "the filter is missing" test -s "$root/lib/csp/libcsp_sockfilter.so"
check "libcsp cannot be linked" env PKG_CONFIG_PATH="$root/lib/pkgconfig" pkg-config --define-prefix --exists csp
check "users are wrong" systemd-sysusers --dry-run "$root/lib/sysusers.d/csp.conf"
[ $wrong = 0 ] && echo "make install: everything is there"
exit $wrong
