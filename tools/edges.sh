#!/bin/sh
# Checks who calls whom against tools/layers.txt, by the symbols of the object files: edges.sh BUILD-FOLDER, or
# edges.sh --self-test. What a folder of src may include, it may call; cli and server may call what quern.h
# declares with QN_API, wherever it is defined.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# Lines "folder symbol kind" of the objects, U for what is only used.
symbols() {
    find "$1/CMakeFiles" -path '*.dir/src/*' -name '*.o' | while read -r object; do
        source=${object##*.dir/} # of a file that was renamed, the old object may still be there
        if [ -f "$here/../${source%.o}" ]; then echo "$object"; fi
    done | xargs nm -A -g |
        awk '{ folder = $1; sub(/.*\.dir\/src\//, "", folder); sub(/\/.*/, "", folder); print folder, $NF, $(NF - 1) }'
}

# check: reads such lines; prints each call that is not allowed, and fails if there is one.
check() {
    awk '
        FILENAME ~ /layers\.txt$/ {
            sub(/#.*/, ""); sub(/:/, " ")
            for (i = 1; i <= NF; i++) ok[$1, $i] = 1
            next
        }
        FILENAME ~ /quern\.h$/ {
            if (/^QN_API/) is_public = 1
            if (is_public && match($0, /qn_[a-z0-9_]+\(/)) {
                public[substr($0, RSTART, RLENGTH - 1)] = 1
                is_public = 0
            }
            next
        }
        $3 == "U" { used[$1 " " $2] = 1; next }
        { home[$2] = $1 }
        END {
            for (pair in used) {
                split(pair, part, " ")
                from = part[1]; symbol = part[2]; to = home[symbol]
                if (to == "" || from == to || (from, to) in ok) continue
                if ((from == "cli" || from == "server") && symbol in public) continue
                print from " must not call " symbol " of " to
                bad = 1
            }
            exit bad
        }' "$here/layers.txt" "$here/../include/quern.h" "$1"
}

self_test() {
    lines=$(mktemp)
    trap 'rm -f "$lines"' EXIT
    failed=0
    while read -r from symbol to want; do
        printf '%s %s T\n%s %s U\n' "$to" "$symbol" "$from" "$symbol" >"$lines"
        got=yes
        check "$lines" >/dev/null || got=no
        if [ "$got" != "$want" ]; then
            echo "edges: $from calls $symbol of $to: let through: $got, want $want"
            failed=1
        fi
    done <<END
runtime qn_anything api no
runtime qn_anything backends yes
make qn_engine_open api no
cli qn_engine_open runtime yes
cli qn_packs_create runtime no
core qn_anything gen no
END
    return $failed
}

if [ "${1:-}" = --self-test ]; then
    self_test
else
    lines=$(mktemp)
    trap 'rm -f "$lines"' EXIT
    symbols "$1" >"$lines"
    grep -q ' T$' "$lines" || { echo "edges: no object files under $1" >&2; exit 1; }
    check "$lines"
fi
