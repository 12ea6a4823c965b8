#!/bin/sh
# Checks what the compilers do not: lint.sh. With `fmt` it only rewrites the sources into their form.
set -eu
cd "$(dirname "$0")/.."
code=$(find src include tests bench examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
if [ "${1:-}" = fmt ]; then
    clang-format -i $code
    exit 0
fi
bad=0
step() { # name, command: its output is shown when it fails
    echo "lint: $1"
    shift
    "$@" || bad=1
}
# Prints what grep finds and fails if it finds anything.
none() { if grep -nH "$@"; then return 1; fi; }

form() {
    unformed=$(echo "$code" | xargs -n 1 sh -c 'clang-format "$0" | cmp -s - "$0" || echo "$0: run make fmt"')
    [ -z "$unformed" ] || { echo "$unformed"; return 1; }
}
tidy() {
    find src -name '*.c' | sort | xargs -P "$(nproc)" -n 2 clang-tidy -p build --quiet 2>&1 |
        grep -v 'warnings* generated\.$' | { ! grep .; }
}
environment() { none -wE '(secure_)?getenv' $(find src -name '*.[ch]' ! -path src/core/debug.c); }
ascii() { LC_ALL=C none '[^ -~	]' $code $(find src tools -name '*.def' -o -name '*.sh') Makefile CMakeLists.txt; }
columns() { find src include tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort | xargs awk 'length > 100 { print FILENAME ":" FNR ": " length " columns"; bad = 1 } END { exit bad }'; }
dead_code() { none -E '^#[ ]*if 0|//.*TODO[^(]' $code; }
printing() { none -E '(^|[^a-z_])(f?printf|f?puts|putchar|_?exit|abort) ?\(' $(find src -name '*.c' ! -path 'src/cli/*' ! -path 'src/server/*'); }
# jansson's reader and writer lose failed allocations, and its allocation functions are the whole process's.
json() { none -E '(^|[^a-z_])json_(dump|load|vpack_ex|deep_copy|set_alloc)[a-z_]* ?\(' $(find src -name '*.[ch]'); }
paths() { git ls-files -z | grep -zvE '^(tests/data|models)/|^tools/lint.sh$' | xargs -0 grep -nIE '(^|[^a-z.])/(home|root|work|Users)/'; test $? != 0; }

step "form" form
step "layers" tools/layers.sh
step "link edges" tools/edges.sh build
step "names" tools/names.sh build
step "sizes" tools/sizes.sh
step "links" tools/links.sh
step "the environment is read in core/debug.c only" environment
step "sources are ASCII" ascii
step "at most 100 columns" columns
step "no dead code, no TODO without a name" dead_code
step "the library does not print, exit or abort" printing
step "JSON is read and written by core/json.h only" json
step "no paths of one machine" paths
step "clang-tidy" tidy
[ $bad = 0 ] && echo "lint: clean"
exit $bad
