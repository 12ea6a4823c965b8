#!/bin/sh
# Checks that no two files of src and no two types have one name: names.sh. A debugger, a search and a reader know
# them by nothing else.
set -eu
cd "$(dirname "$0")/.."
files=$(find src -name '*.[ch]' | sed 's|.*/||' | sort | uniq -d)
types=$(find src include -name '*.[ch]' | xargs awk '
    # A name counts once for each file that defines it: "} name;" after typedef, or "typedef ... name;".
    /^typedef (struct|enum|union) .*\{/ { inside = 1; next }
    inside && /^} [a-z_0-9]+;/ { name = $2; sub(/;.*/, "", name); print name " " FILENAME; inside = 0 }
' | sort -u | awk '{ n[$1]++; where[$1] = where[$1] " " $2 } END { for (t in n) if (n[t] > 1) print t ":" where[t] }' | grep '^qn_' || true)
[ -z "$files" ] || printf 'names: more than one file is called %s\n' $files
[ -z "$types" ] || printf 'names: defined twice: %s\n' "$types"
[ -z "$files$types" ]
