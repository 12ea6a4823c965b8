#!/bin/sh
# Installs what the tests with clients and browsers need from npm (npm_packages.txt) into FOLDER, once for each list:
# npm_packages.sh FOLDER. Exit status 77: it cannot be done here, and it says why.
set -eu
folder=$1
list=$(dirname "$0")/npm_packages.txt

skip() {
    echo "skip: $1"
    exit 77
}
command -v node >/dev/null || skip "node is not installed"
command -v npm >/dev/null || skip "npm is not installed"

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9 # several tests may want them at once
cmp -s "$list" "$folder/installed.txt" && exit 0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Several names, of one install.
# shellcheck disable=SC2046
if ! npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error --fetch-retries=1 \
    --prefix "$folder" $(cat "$list") >"$log" 2>&1; then
    grep -qE 'ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH' "$log" &&
        skip "npm registry not reachable"
    cat "$log"
    exit 1
fi
cp "$list" "$folder/installed.txt"
