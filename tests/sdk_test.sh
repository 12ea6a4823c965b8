#!/bin/sh
# Drives a server with the clients that people use, which npm brings by name (sdk/packages.txt) into
# BUILD/npm. sdk_test.sh SOURCE BUILD [FILE.mjs...]; exit status 77: skipped, it says why.
set -eu
source=$1 build=$2
shift 2
packages=$source/tests/sdk/packages.txt
npm=$build/npm
key=key-of-the-test

skip() {
    echo "skip: $1"
    exit 77
}
command -v node >/dev/null || skip "node is not installed"
command -v npm >/dev/null || skip "npm is not installed"

work=$(mktemp -d)
server=
finish() {
    status=$?
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" || status=1
    rm -rf "$work"
    exit $status
}
trap finish EXIT

# Once installed, the packages stay as long as their list does.
if ! cmp -s "$packages" "$npm/installed.txt"; then
    mkdir -p "$npm"
    # Several names, of one install.
    # shellcheck disable=SC2046
    if ! npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error \
        --fetch-retries=1 --prefix "$npm" $(cat "$packages") >"$work/npm.log" 2>&1; then
        if grep -qE 'ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH' \
            "$work/npm.log"; then
            skip "npm registry not reachable"
        fi
        cat "$work/npm.log"
        exit 1
    fi
    cp "$packages" "$npm/installed.txt"
fi

mkfifo "$work/out"
"$build/quern" serve "$source/models/quern-mini-Q8_0.gguf" --port -1 --api-key "$key" \
    >"$work/out" 2>"$work/err" &
server=$!
exec 3<"$work/out"
url=
while [ -z "$url" ]; do
    read -r line <&3 || { cat "$work/err"; echo "the server did not start"; exit 1; }
    case $line in
    address*) url=${line##* } ;;
    esac
done
cat <&3 >/dev/null &

[ $# -gt 0 ] || set -- "$source"/tests/sdk/test_*.mjs
QUERN_URL=$url QUERN_KEY=$key QUERN_NPM=$(cd "$npm" && pwd) node --test --test-reporter=spec "$@"
