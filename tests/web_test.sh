#!/bin/sh
# The page in Chromium: web_test.sh SOURCE BUILD NAME runs tests/web/test_NAME.mjs against a made-up server that says
# what a test needs; NAME `real` runs what can be asked of `quern serve` itself. Exit status 77: skipped, it says why.
set -eu
source=$1 build=$2 name=$3
"$source/tests/npm_packages.sh" "$build/npm"
WEB_NPM=$(cd "$build/npm" && pwd)
export WEB_NPM
[ "$name" = real ] || exec node "$source/tests/web/test_$name.mjs"
. "$source/tests/serve_child.sh"
serve_child "$build" "$source/models/quern-mini-Q8_0.gguf"
WEB_URL=$url node "$source/tests/web/test_chat.mjs"
WEB_URL=$url node "$source/tests/web/test_access.mjs"
