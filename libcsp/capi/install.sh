#!/bin/bash
# Installs what a C program needs of libcsp.
#   install.sh ARCHIVE DESTDIR PREFIX    library, archive, header, pkg-config file and manual below DESTDIR PREFIX
set -euo pipefail
archive=$1 root=$2$3 prefix=$3
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -1)
mkdir -p "$root/lib/pkgconfig" "$root/include" "$root/share/man/man3" "$root/share/man/man7"
"$here/link.sh" "$archive" "$root/lib"
strip --strip-debug "$root/lib/libcsp.so.$version"
install -m 644 "$archive" "$root/lib/libcsp.a"
install -m 644 "$here/include/csp.h" "$root/include/csp.h"
sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|\${prefix}/lib|; s|@VERSION@|$version|" "$here/csp.pc.in" > "$root/lib/pkgconfig/csp.pc"
install -m 644 "$here"/man/*.3 "$root/share/man/man3"
install -m 644 "$here"/man/*.7 "$root/share/man/man7"
# A page is found under the name of each of its functions.
for page in "$here"/man/*.3; do
  for name in $(sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([a-z_]*\).*/\1/p' "$page"); do
    [ -e "$root/share/man/man3/$name.3" ] || ln -s "$(basename "$page")" "$root/share/man/man3/$name.3"
  done
done
