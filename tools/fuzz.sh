#!/bin/sh
# Runs the fuzz targets that `make fuzz` built: fuzz.sh SECONDS [NAME]. The seconds are divided among them.
# New inputs are kept in build-fuzz/corpus/NAME, failing ones in build-fuzz/crash/.
set -eu
cd "$(dirname "$0")/.."
targets=
for target in build-fuzz/tests/fuzz/fuzz_*; do
    case $target in *"${2:-}"*) [ -f "$target" ] && [ -x "$target" ] && targets="$targets $target" ;; esac
done
set -- "$1" $targets
[ $# -gt 1 ] || { echo "fuzz: no such target in build-fuzz; run make fuzz" >&2; exit 1; }
seconds=$(($1 / ($# - 1)))
shift
mkdir -p build-fuzz/crash
for target; do
    name=${target##*/fuzz_}
    corpus=build-fuzz/corpus/$name
    mkdir -p "$corpus"
    seeds=tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    log=build-fuzz/$name.log
    if ! "$target" -max_total_time=$((seconds > 0 ? seconds : 1)) -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="build-fuzz/crash/$name-" "$corpus" $seeds >"$log" 2>&1; then
        tail -n 60 "$log"
        echo "fuzz: $name failed" >&2
        exit 1
    fi
    printf '%-24s %s\n' "$name" "$(grep '^Done' "$log" || echo 'no summary')"
done
