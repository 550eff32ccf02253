#!/bin/bash
# Installs every program, the socket filter, libcsp, units, examples, manual pages and completions.
#   install.sh BINARIES DESTDIR PREFIX     BINARIES: the folder that cargo has built into, such as target/release
# Users are not made: systemd-sysusers and systemd-tmpfiles do it from the installed files.
set -euo pipefail
binaries=$1 root=$2$3 prefix=$3
here=$(cd "$(dirname "$0")" && pwd)
doc=$root/share/doc
# systemd, sysusers and tmpfiles look in /usr/lib and /usr/local/lib alike.
install -d "$root"/{bin,sbin,lib/csp,lib/systemd/system,lib/sysusers.d,lib/tmpfiles.d,share/man/man1,share/man/man8} \
  "$root"/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}

manual() { # SECTION PROGRAM DESCRIPTION
  help2man --no-info --no-discard-stderr --section="$1" --name="$3" --source="CSP" \
    --output="$root/share/man/man$1/$2.$1" "$binaries/$2"
}

completions() { # SHELL PROGRAM ARGUMENTS
  local to
  case $1 in
    bash) to=bash-completion/completions/$2 ;;
    zsh) to=zsh/vendor-completions/_$2 ;;
    fish) to=fish/vendor_completions.d/$2.fish ;;
  esac
  "$binaries/$2" "${@:3}" > "$root/share/$to"
}

# Rules for Prometheus and dashboards for Grafana.
install -D -m 644 -t "$root/share/csp/prometheus" "$here/prometheus/rules.yml"
install -D -m 644 -t "$root/share/csp/grafana" "$here"/grafana/*.json

for tier in network-node proxy-node app-node mgmt-node; do
  install -m 755 "$binaries/csp-$tier" "$root/sbin/"
  sed "s|/usr/sbin/|$prefix/sbin/|" "$here/systemd/csp-$tier.service" > "$root/lib/systemd/system/csp-$tier.service"
  install -D -m 644 "$here/examples/$tier.yaml" "$doc/csp-$tier/examples/$tier.yaml"
  manual 8 "csp-$tier" "${tier/-/ } of the Comm Services Platform"
done
install -m 755 "$binaries/csp-edge-node" "$binaries/csp-context" "$root/sbin/"
sed "s|/usr/sbin/|$prefix/sbin/|" "$here/systemd/csp-edge-node.service" > "$root/lib/systemd/system/csp-edge-node.service"
for tier in network-node proxy-node; do install -D -m 644 "$here/examples/$tier.yaml" "$doc/csp-edge-node/examples/$tier.yaml"; done
manual 8 csp-edge-node "network node and proxy node of the Comm Services Platform in one process"
sed "s|/usr/sbin/|$prefix/sbin/|; s|/usr/bin/|$prefix/bin/|" "$here/systemd/csp-context.service" > "$root/lib/systemd/system/csp-context.service"
sed "s|/usr/sbin/|$prefix/sbin/|; s|/usr/bin/|$prefix/bin/|" "$here/systemd/csp-plugin-host.service" > "$root/lib/systemd/system/csp-plugin-host.service"
manual 8 csp-context "context of the Comm Services Platform: handlers of messages"
install -m 755 "$binaries/csp-run" "$binaries/cspctl" "$root/bin/"
install -m 755 "$binaries/libcsp_sockfilter.so" "$root/lib/csp/"
sed "s|/usr/lib/csp/|$prefix/lib/csp/|" "$here/accelerate.conf" > "$doc/csp-app-node/examples/accelerate.conf"
manual 1 csp-run "start a program under the socket filter of the Comm Services Platform"
manual 1 cspctl "show and control a cluster of the Comm Services Platform"
install -m 644 "$here/sysusers.conf" "$root/lib/sysusers.d/csp.conf"
install -m 644 "$here/tmpfiles.conf" "$root/lib/tmpfiles.d/csp.conf"
for shell in bash zsh fish; do
  completions "$shell" cspctl completions "$shell"
  for program in csp-run csp-context csp-{network,proxy,edge,app,mgmt}-node; do completions "$shell" "$program" --completions "$shell"; done
done
"$here/../libcsp/capi/install.sh" "$binaries/libcsp.a" "$2" "$prefix"
