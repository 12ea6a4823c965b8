#!/bin/sh
# Writes the tables of routes and request fields in docs/server.md again, after routes.def or fields.def changed.
set -eu
cd "$(dirname "$0")/.."
ninja -C build --quiet test_server_openapi
build/tests/test_server_openapi --write
