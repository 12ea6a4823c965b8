#!/bin/sh
# Prints how large Quern is: files and lines of each folder, and rows of each table.
# sz.sh --check fails where src has more lines than its budget.
set -eu
cd "$(dirname "$0")/.."

# Lines that src may have. What is added should replace something; raising this is a commit of its own that says why.
budget=139900

sources() { find "$@" -path tests/data -prune -o -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name '*.sh' \) -print; }
row() { printf '%-16s %6d %8d\n' "$1" "$(sources $2 | wc -l)" "$(sources $2 | xargs -r cat | wc -l)"; }
count() { # name, the table, what a row begins with
    [ -f "$2" ] && printf '%-16s %6d rows in %s\n' "$1" "$(grep -c "^$3(" "$2")" "$2" || true
}

if [ "${1:-}" = --check ]; then
    lines=$(sources src | xargs cat | wc -l)
    [ "$lines" -le "$budget" ] && exit
    echo "sz: src has $lines lines, its budget is $budget (tools/sz.sh)"
    exit 1
fi

printf '%-16s %6s %8s\n' folder files lines
for folder in include src/* tests bench examples tools; do
    if [ -n "$(sources "$folder" 2>/dev/null)" ]; then row "$folder" "$folder"; fi
done
row library "include src"
echo
count ops src/ir/ops.def OP
count types src/quant/types.def TYPE
count families src/models/models.def MODEL
count switches src/core/switch.def SWITCH
