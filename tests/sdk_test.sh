#!/bin/sh
# Drives a server with the clients that people use, which npm brings by name: sdk_test.sh SOURCE BUILD [FILE.mjs...]
# Exit status 77: skipped, it says why.
set -eu
source=$1 build=$2
shift 2
key=key-of-the-test
"$source/tests/npm_packages.sh" "$build/npm"
. "$source/tests/serve_child.sh"
serve_child "$build" "$source/models/quern-mini-Q8_0.gguf" --api-key "$key"
[ $# -gt 0 ] || set -- "$source"/tests/sdk/test_*.mjs
QUERN_URL=$url QUERN_KEY=$key QUERN_NPM=$(cd "$build/npm" && pwd) node --test --test-reporter=spec "$@"
