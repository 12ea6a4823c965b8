#!/bin/sh
# One of the Python package's test files against the shared library: python_test.sh SOURCE LIBQUERN.SO CC NAME
# NAME with _plain at its end runs it where numpy cannot be imported.
set -eu
source=$1 library=$2 cc=$3 name=$4
python=/usr/bin/python3 # which has the packages of tools/packages.txt
[ -x $python ] || python=$(command -v python3) || { echo "skip: python3 is not installed"; exit 77; }

numpy=1
case $name in
*_plain) numpy=0 name=${name%_plain} ;;
model | session | hostile) "$python" -c 'import numpy' || { echo "skip: numpy is not installed"; exit 77; } ;;
esac
export PYTHONPATH="$source/python" PYTHONDONTWRITEBYTECODE=1 QUERN_LIBRARY="$library" QUERN_TEST_NUMPY=$numpy CC="$cc"
exec "$python" -W error "$source/tests/python/test_$name.py"
