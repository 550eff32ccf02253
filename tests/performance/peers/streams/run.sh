#!/bin/bash
# The join and the windows of csp-messages-evaluation beside Esper (Maven Central) and Bytewax (PyPI), each in one process and one thread.
# Needs a JDK (17 or later), Maven and Python with venv. Arguments go to csp-messages-evaluation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for program in javac mvn python3; do
  command -v $program >/dev/null || { echo "streams: needs $program (Debian: default-jdk-headless, maven, python3-venv)" >&2; exit 69; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/lib"
javac -nowarn -proc:none -cp "$work/lib/*" -d "$work/esper" "$here/EsperPeer.java"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q --disable-pip-version-check install bytewax==0.21.1
"${RELEASE:-target/release}/csp-messages-evaluation" "$@" \
  --peer "Esper 8.9=java -XX:+UseSerialGC -cp $work/esper:$work/lib/* EsperPeer 2000000" \
  --peer "Bytewax 0.21=$work/venv/bin/python $here/bytewax_peer.py 200000"
