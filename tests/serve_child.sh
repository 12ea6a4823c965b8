# Starts `quern serve` for a shell test that sources this: serve_child BUILD ARGS... sets `url`, and the server ends
# with the test. Its exit status must be 0.
work=$(mktemp -d)
server=
finish_child() {
    status=$?
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" || status=1
    rm -rf "$work"
    exit $status
}
trap finish_child EXIT

serve_child() {
    build=$1
    shift
    mkfifo "$work/out"
    "$build/quern" serve --port -1 "$@" >"$work/out" 2>"$work/err" &
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
}
