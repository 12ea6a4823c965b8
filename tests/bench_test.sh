#!/bin/sh
# bench/speed and bench/compare, on programs that are made up: bench_test.sh SOURCE
set -eu
python=/usr/bin/python3 # which has the packages of tools/packages.txt
[ -x $python ] || python=$(command -v python3) || { echo "skip: python3 is not installed"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 exec "$python" -W error "$1/tests/bench/test_bench.py"
