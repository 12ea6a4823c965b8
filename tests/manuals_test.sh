#!/bin/sh
# Manual pages: one for the program, for every command and for every function, and nothing that mandoc or man warns of.
# manuals_test.sh SOURCE BUILD
set -eu
source=$1 build=$2
pages=$build/pages quern=$build/quern
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }
plain() { mandoc -Tascii -O width=400 "$1" | sed 's/.\x08//g'; }

# Every command that the program tells of, and no other.
"$quern" help | sed -n '/^commands$/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v '^help$' | sort >"$work/commands"
[ "$(wc -l <"$work/commands")" -gt 10 ] || fail "quern help lists few commands"
ls "$pages/man1" | sed -n 's/^quern-\(.*\)\.1$/\1/p' | sort | diff "$work/commands" - || fail "pages of commands"
[ -f "$pages/man1/quern.1" ] || fail "no quern.1"

# Every option of --help, as it can be copied from the page.
while read -r command; do
    plain "$pages/man1/quern-$command.1" >"$work/page"
    "$quern" help "$command" | sed -n '/^options$/,/^$/s/^  \(-[a-z]*, \|    \)\(--[a-z0-9-]*\).*/\2/p' >"$work/options"
    [ -s "$work/options" ] || fail "quern help $command lists no options"
    while read -r option; do
        grep -q -e "$option" "$work/page" || fail "quern-$command.1 does not have $option"
    done <"$work/options"
    grep -q "^.BR quern.-$command (1)" "$pages/man1/quern.1" || fail "quern.1 does not name $command"
done <"$work/commands"

# Every variable that the program reads for its user.
plain "$pages/man1/quern.1" >"$work/page"
grep -o 'read_variable("[A-Z_]*")' "$source/src/core/debug.c" | cut -d '"' -f 2 | sort -u |
    grep -vxE 'HOME|XDG_CACHE_HOME|OMPI_COMM_WORLD_SIZE|PMI_SIZE|PMIX_RANK|SLURM_.*' >"$work/variables"
[ "$(wc -l <"$work/variables")" -gt 10 ] || fail "few variables in debug.c"
while read -r variable; do
    grep -qw -e "$variable" "$work/page" || fail "quern.1 does not have $variable"
done <"$work/variables"

# Every function of the header leads to a page that declares it.
grep '^QN_API' "$source/include/quern.h" | grep -o 'qn_[a-z0-9_]*(' | tr -d '(' | sort >"$work/functions"
[ "$(wc -l <"$work/functions")" -gt 100 ] || fail "few functions in quern.h"
while read -r function; do
    file=$pages/man3/$function.3
    [ -f "$file" ] || fail "no page of $function"
    page=$pages/$(sed -n 's/^\.so //p' "$file")
    grep -q "^[^.]*$function(" "$page" || fail "$page does not declare $function"
done <"$work/functions"
# What is said of a function stands below it, and not below the next one.
plain "$pages/man3/libquern-tokenizer.3" |
    sed -n '/qn_tokenizer_find(/,/qn_tokenizer_is_end(/p' | tr -s ' \n' ' ' |
    grep -q 'size); The id of a token spelled exactly so' || fail "the text of qn_tokenizer_find is elsewhere"

# A page has no date: two builds of one source make one page.
all="$pages/man1/*.1 $pages/man3/libquern*.3"
mandoc -Tlint -W warning $all | grep -v 'missing date, using ""' && fail "mandoc warns"
# The man of most systems has another formatter.
if man --version 2>/dev/null | grep -q '^man 2'; then
    man --warnings -E UTF-8 -l -Tutf8 -Z $all 2>&1 >/dev/null | grep . && fail "man warns"
else
    echo "skipped: man --warnings, as man-db is not installed"
fi
echo "$(ls "$pages/man1" "$pages/man3" | grep -c '\.[13]$') pages, and no warning"
