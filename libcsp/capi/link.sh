#!/bin/bash
# Links libcsp.so from the archive that cargo builds. cargo's own shared libraries cannot have versioned symbols: rustc
# hands the linker an anonymous version script, beside which no other may stand.
#   link.sh ARCHIVE FOLDER    makes FOLDER/libcsp.so.0.1.0, libcsp.so.0 (the SONAME) and libcsp.so
set -euo pipefail
archive=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -1)
mkdir -p "$folder"
"${CC:-cc}" -shared -o "$folder/libcsp.so.$version.new" \
  -Wl,-soname,libcsp.so.0 -Wl,--version-script="$here/libcsp.map" -Wl,-z,defs -Wl,-z,now -Wl,-z,relro \
  -Wl,--gc-sections -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lgcc_s -lpthread -ldl -lm -lc
mv "$folder/libcsp.so.$version.new" "$folder/libcsp.so.$version"
ln -sf "libcsp.so.$version" "$folder/libcsp.so.0"
ln -sf libcsp.so.0 "$folder/libcsp.so"
