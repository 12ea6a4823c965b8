#!/bin/sh
# Checks names: names.sh [BUILD-FOLDER], or names.sh --self-test. No two files of src and no two types have one name: a
# debugger, a search and a reader know them by nothing else. In folders with many names, types and, with the objects of
# a BUILD-FOLDER, all that other files can call begin with the folder's prefix.
set -eu
cd "$(dirname "$0")/.."

# Reads lines "file name"; prints each name of these folders that has none of its prefixes, and fails if there is one.
# The first prefix is the folder's, the others are those of its main objects.
prefixes() {
    awk '
        BEGIN {
            want["src/gen/grammar/"] = "qn_gr_ qn_grammar qn_matcher"
            want["src/chat/"] = "qn_jinja_ qn_template qn_parts qn_call qn_chat_ qn_builtin_template"
        }
        {
            for (folder in want) {
                if (index($1, folder) != 1) continue
                n = split(want[folder], prefix, " ")
                for (i = 1; i <= n && index($2, prefix[i]) != 1; i++) continue
                if (i <= n) continue
                print "names: " $1 ": " $2 " does not begin with " prefix[1]
                bad = 1
            }
        }
        END { exit bad }'
}

# Lines "name file" of the types that files define: "} name;" after typedef. A name counts once for each file.
types() {
    find src include -name '*.[ch]' | xargs awk '
        /^typedef (struct|enum|union) .*\{/ { inside = 1; next }
        inside && /^} [a-z_0-9]+;/ { name = $2; sub(/;.*/, "", name); print name " " FILENAME; inside = 0 }
    ' | sort -u | grep '^qn_'
}

# Lines "file symbol" of what the objects define for others; the address sanitizer adds names of its own.
symbols() {
    (cd "$1/CMakeFiles" && find . -path '*.dir/src/*' -name '*.o' | xargs nm -A -g --defined-only) | awk '
        { file = $1; sub(/.*\.dir\//, "", file); sub(/\.o:.*/, "", file); if ($NF !~ /^__odr_asan/) print file, $NF }' |
        while read -r file symbol; do # of a file that was renamed, the old object may still be there
            if [ -f "$file" ]; then echo "$file $symbol"; fi
        done
}

self_test() {
    failed=0
    while read -r file name want; do
        got=yes
        echo "$file $name" | prefixes >/dev/null || got=no
        if [ "$got" != "$want" ]; then
            echo "names: $name in $file: let through: $got, want $want"
            failed=1
        fi
    done <<END
src/gen/grammar/states.c qn_gr_states_create yes
src/gen/grammar/states.c qn_states_create no
src/gen/grammar/matcher.c qn_matcher_feed yes
src/gen/chooser.c qn_chooser_create yes
src/chat/value.c qn_val_print no
src/chat/value.c qn_jinja_val_print yes
src/chat/template.c qn_template_render yes
src/core/buf.c qn_buf_add yes
END
    return $failed
}

if [ "${1:-}" = --self-test ]; then
    self_test
    exit
fi
bad=0
files=$(find src -name '*.[ch]' | sed 's|.*/||' | sort | uniq -d)
[ -z "$files" ] || { printf 'names: more than one file is called %s\n' $files; bad=1; }
types | awk '
    { n[$1]++; where[$1] = where[$1] " " $2 }
    END { for (t in n) if (n[t] > 1) { print "names: defined twice: " t ":" where[t]; bad = 1 }; exit bad }' || bad=1
types | awk '{ print $2, $1 }' | prefixes || bad=1
if [ $# -gt 0 ]; then
    lines=$(mktemp)
    trap 'rm -f "$lines"' EXIT
    symbols "$1" >"$lines"
    [ -s "$lines" ] || { echo "names: no object files under $1" >&2; exit 1; }
    prefixes <"$lines" || bad=1
fi
exit $bad
