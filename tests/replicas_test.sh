#!/bin/sh
# Replicas behind HAProxy with the configuration in deploy/: replicas_test.sh SOURCE BUILD NAME runs
# tests/replicas/test_NAME.py. Exit status 77: skipped, it says why.
set -eu
source=$1 build=$2 name=$3
PATH=$PATH:/usr/sbin
skip() {
    echo "skip: $1"
    exit 77
}
python=/usr/bin/python3 # which has the packages of tools/packages.txt
[ -x $python ] || python=$(command -v python3) || skip "python3 is not installed"
command -v haproxy >/dev/null || skip "haproxy is not installed (tools/setup.sh)"
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$source/tests/replicas/test_$name.py" "$build/quern"
