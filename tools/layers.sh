#!/bin/sh
# Checks the includes of src against tools/layers.txt: layers.sh [source-folder], or layers.sh --self-test.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# check ROOT: prints each include that is not allowed; fails if there is one.
check() {
    (cd "$1" && find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name '*.inc' | sort | xargs awk '
        FNR == 1 { file = FILENAME; split(file, part, "/"); from = part[2] }
        file ~ /layers\.txt$/ {
            sub(/#.*/, ""); sub(/:/, " ")
            for (i = 1; i <= NF; i++) ok[$1, $i] = 1
            if (NF) known[$1] = 1
            next
        }
        !/^[ \t]*#[ \t]*include[ \t]/ { next }
        {
            angle = /</
            if (!angle && /"[a-z_]+\.cuh"/) next # code for GPUs, which has a folder for itself
            name = $0; sub(/^[^<"]*[<"]/, "", name); sub(/[>"].*/, "", name)
            n = split(name, part, "/")
            to = name == "quern.h" ? "quern" : n > 1 ? part[1] : ""
            if (angle && !(to in known) && to != "quern") next # a system header
            why = ""
            if (name ~ /\.\./) why = "must name its include from src, not by .."
            else if (to == "") why = "must name the folder of"
            else if (!(from in known)) why = "has no line in tools/layers.txt, but includes"
            else if (!((from, to) in ok)) why = "must not include"
            if (why) { print file ":" FNR ": " why " " name; bad = 1 }
        }
        END { exit bad }' "$here/layers.txt")
}

# Each line is a file, an include, and whether it must be let through.
self_test() {
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    failed=0
    while read -r file include want; do
        rm -rf "$root/src"
        mkdir -p "$root/src/$(dirname "$file")"
        printf '// a comment\n#include %s\n' "$include" >"$root/src/$file"
        got=yes
        check "$root" >/dev/null || got=no
        if [ "$got" != "$want" ]; then
            echo "layers: $file with #include $include: let through: $got, want $want"
            failed=1
        fi
    done <<END
cli/main.c "ir/graph.h" no
cli/main.c "quern.h" yes
cli/main.c <ir/graph.h> no
cli/main.c <quern.h> yes
cli/main.c "core/err.h" yes
cli/main.c "../ir/graph.h" no
core/mem.c "core/mem.h" yes
core/mem.c "quant/type.h" no
core/mem.c <sys/stat.h> yes
core/mem.c "mem.h" no
models/qwen3.c "backends/backend.h" no
backends/cpu/cpu.c "models/model.h" no
backends/cpu/cpu.c "backends/cpu/cpu.h" yes
ir/ops.def "models/model.h" no
odd/new.c "core/err.h" no
END
    return $failed
}

if [ "${1:-}" = --self-test ]; then self_test; else check "${1:-$here/..}"; fi
