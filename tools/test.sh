#!/bin/sh
# Runs the tests of a build folder on all cores and prints cmocka's summary of each: test.sh BUILD [NAME].
set -eu
build=$1
status=0
# What the user of this machine keeps for Quern is none of the tests' business.
unset XDG_CONFIG_HOME XDG_DATA_HOME $(env | sed -n 's/^\(QUERN_[A-Z0-9_]*\)=.*/\1/p')
export QUERN_CONFIG=none
if [ -n "${2:-}" ] && ! ctest --test-dir "$build" -N -R "$2" | grep -q 'Test *#'; then
    echo "no test has '$2' in its name; the names are:"
    ctest --test-dir "$build" -N | sed -n 's/.*Test *#[0-9]*: /  /p' | tr -s '\n ' ' ' | fold -sw 100; echo
    exit 1
fi
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure --no-tests=error ${2:+-R "$2"} || status=$?
echo
# ctest keeps everything that the tests printed; cmocka ends with these lines.
awk '/^[0-9]+\/[0-9]+ Test(ing)?: / { name = $NF }
    /^\[ *(PASSED|SKIPPED|FAILED) *\] [0-9]+ test/ {
        printf "%-24s %s\n", name, $0
        n = $0; gsub(/[^0-9]/, "", n); total[$2] += n
    }
    /^\[ *SKIPPED *\] / && !/\] [0-9]+ test/ { sub(/^[^]]*\] /, ""); skipped[name ": " $0] }
    END {
        for (k in skipped) { print "skipped " k; any_skipped = 1 }
        if (any_skipped) print "(they run with published tokenizers, which tools/fetch_tokenizers.sh brings, and with a locale that has a decimal comma)"
        for (k in total) any = 1
        if (!any) exit
        printf "all together:"
        for (k in total) printf " %s %d", tolower(k), total[k]
        print ""
    }' "$build/Testing/Temporary/LastTest.log"
exit $status
