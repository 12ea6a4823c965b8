#!/bin/sh
# Runs the tests of a build folder on all cores and prints cmocka's summary of each: test.sh BUILD [NAME].
set -eu
build=$1
status=0
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
        for (k in skipped) print "skipped " k
        for (k in total) any = 1
        if (!any) exit
        printf "all together:"
        for (k in total) printf " %s %d", tolower(k), total[k]
        print ""
    }' "$build/Testing/Temporary/LastTest.log"
exit $status
