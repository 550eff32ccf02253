#!/bin/bash
# Makes the vectors of csp-formats anew with the codecs that the official sbe-tool generates, and compares: what the tool encodes
# from tests/formats/cases.jsonl with the vectors in the tree (WRITE=1 replaces them), and what csp-formats encodes with what the
# tool decodes. Needs a JDK (17 or later) and Maven.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/formats vectors=libcsp/formats/tests/vectors
for program in javac mvn; do
  command -v $program >/dev/null || { echo "formats: needs $program (Debian: default-jdk-headless, maven)" >&2; exit 69; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for schema in everything evolution-0 evolution-2; do
  sed -e 's/littleEndian/bigEndian/; s/package="\(.*\)\.le"/package="\1.be"/' \
    -e "2s/.*/<!-- Made from $schema-le.xml by tests\/formats\/run.sh. -->/" \
    $vectors/$schema-le.xml >"$work/$schema-be.xml"
  [ "${WRITE:-}" = 1 ] && cp "$work/$schema-be.xml" $vectors/
  diff "$work/$schema-be.xml" $vectors/$schema-be.xml || { echo "formats: $schema-be.xml is not made from its twin" >&2; exit 1; }
done

mvn -q -B -f $here/pom.xml dependency:copy-dependencies -DoutputDirectory="$work/lib"
javac -nowarn -proc:none -cp "$work/lib/*" -d "$work/tool" $here/*.java
tool() {
  java --add-opens java.base/jdk.internal.misc=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED \
    -cp "$work/tool:$work/lib/*" Formats "$1" $vectors "$2" "$work/made"
}
tool make $here/cases.jsonl >"$work/vectors.jsonl"
[ "${WRITE:-}" = 1 ] && cp "$work/vectors.jsonl" $vectors/
diff "$work/vectors.jsonl" $vectors/vectors.jsonl >/dev/null || { echo "formats: vectors.jsonl differs from what sbe-tool makes" >&2; exit 1; }
echo "formats: sbe-tool makes the $(wc -l <$vectors/vectors.jsonl) vectors of the tree"

${CARGO:-cargo} run --quiet --release --locked -p csp-formats --example random-messages -- ${SEED:-1} ${MESSAGES:-500} >"$work/messages.jsonl"
tool compare "$work/messages.jsonl"
