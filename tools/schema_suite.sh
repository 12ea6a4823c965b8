#!/bin/sh
# Runs the published test suite of JSON Schema: schema_suite.sh [FOLDER]. FOLDER has a folder for each draft; without
# it the suite is taken from Debian's libtest-json-schema-acceptance-perl, which is fetched, not installed, and never
# committed. (The packages of npm are of 2016, or take the suite from elsewhere.)
set -eu
cd "$(dirname "$0")/.."
suite=${1:-}
if [ -z "$suite" ]; then
    to=build/schema-suite
    suite=$to/usr/share/perl5/auto/share/dist/Test-JSON-Schema-Acceptance/tests
    if [ ! -d "$suite" ]; then
        command -v apt-get >/dev/null || { echo "schema_suite: not a Debian system; give the suite's folder" >&2; exit 1; }
        mkdir -p "$to"
        (cd "$to" && apt-get -qq download libtest-json-schema-acceptance-perl)
        dpkg -x "$to"/libtest-json-schema-acceptance-perl_*.deb "$to"
    fi
fi
exec build/tests/schema_suite "$suite"
