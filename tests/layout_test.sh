#!/bin/sh
# The layout of every struct of quern.h, as bindings see it, is the one in tests/data/layout.txt:
# what a program was compiled with must not move. Fields are added at the end, by intent:
#   tests/layout_test.sh SOURCE CC --update    writes the file anew; read the difference
# A struct that begins with its size has a row in src/core/structs.def, and no padding at its end,
# which callers need not have set: a field that came to lie there would be read from it.
set -eu
source=$1 cc=$2 update=${3:-}
golden=$source/tests/data/layout.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# "struct field" for each field: comments go, a declaration ends at its semicolon, and the name is
# the last word of each declarator, brackets aside.
sed 's,//.*,,' "$source/include/quern.h" | tr '\n' ' ' | sed 's/typedef struct/\n&/g; s/} qn_/\n&/g' |
    sed -n 's/^typedef struct \(qn_[a-z0-9_]*\) {/\1 ;/p' | awk '
    {
        name = $1; sub(/^[^;]*;/, ""); n = split($0, fields, ";")
        for (i = 1; i <= n; i++) {
            m = split(fields[i], parts, ",")
            for (k = 1; k <= m; k++) {
                part = parts[k]; sub(/\[.*/, "", part); sub(/ *$/, "", part)
                if (part == "") continue
                sub(/.*[^a-zA-Z0-9_]/, "", part)
                print name, part
            }
        }
    }' >"$work/fields"
[ "$(wc -l <"$work/fields")" -gt 200 ] || { echo "found only these fields:"; cat "$work/fields"; exit 1; }

{
    echo '#include <quern.h>'
    echo '#include <stdio.h>'
    echo 'int main(void) {'
    awk '
        $1 != name { if (name) finish(); name = $1
                     printf "    printf(\"%s: %%zu bytes\\n\", sizeof(%s));\n", $1, $1 }
        { last = $2
          printf "    printf(\"  %%4zu %%4zu  %s\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n",
                 $2, $1, $2, $1, $2 }
        function finish() {
            printf "    if (offsetof(%s, %s) + sizeof(((%s *)0)->%s) != sizeof(%s))\n", name, last, name, last, name
            printf "        printf(\"  padding at the end\\n\");\n"
        }
        END { finish() }' "$work/fields"
    echo '    return sizeof(void *) != 8;'
    echo '}'
} >"$work/layout.c"
"$cc" -std=c17 -I"$source/include" "$work/layout.c" -o "$work/layout"
if ! "$work/layout" >"$work/layout.txt"; then
    echo "pointers of this machine are not 64 bits: not compared"
    exit 0
fi

# Sized structs, and those that will never change, by the header's own words.
grep 'bytes$' -A1 "$work/layout.txt" | awk '/bytes$/ { name = $1 } / size$/ { sub(":", "", name); print name }' | sort >"$work/sized"
sed -n 's/^QN_STRUCT(\(qn_[a-z_]*\),.*/\1/p' "$source/src/core/structs.def" | sort >"$work/table"
diff -u "$work/table" "$work/sized" || { echo "src/core/structs.def (-) and the structs that begin with their size (+) differ"; exit 1; }
awk '{ print $1 }' "$work/fields" | sort -u | comm -23 - "$work/sized" >"$work/fixed"
for name in $(cat "$work/fixed"); do
    sed -n '/have no size and will never change/,/^\/\/   -/p' "$source/include/quern.h" | grep -q "\b$name\b" ||
        { echo "$name has no size, and quern.h does not say that it will never change"; exit 1; }
done
if awk '/bytes$/ { name = $1 } /padding at the end/ { sub(":", "", name); print name }' "$work/layout.txt" |
    grep -Fx -f "$work/sized"; then
    echo "these have padding at their end: add a field that fills it"
    exit 1
fi

if [ "$update" = --update ]; then
    cp "$work/layout.txt" "$golden"
else
    diff -u "$golden" "$work/layout.txt" || {
        echo "the layout of public structs has changed; if that is wanted: tests/layout_test.sh . cc --update"
        exit 1
    }
fi
echo "$(wc -l <"$work/sized") structs with a size, $(wc -l <"$work/fixed") fixed ones, $(wc -l <"$work/fields") fields"
