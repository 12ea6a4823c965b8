#!/bin/sh
# Checks the length of files (warns above 1000 lines, fails above 1500) and of functions (60, 120).
# A comment "// long: reason" in the first 20 lines of a file, or directly above or inside a function, lets it pass.
# sizes.sh [folder]. Counts on the form that clang-format gives.
set -eu
cd "${1:-$(dirname "$0")/..}"
find src include tests bench examples -name '*.[ch]' 2>/dev/null | sort | xargs awk '
    function check(count, most, limit, excused, what) {
        if (count <= most || excused) return
        print what ": " count " lines, " (count > limit ? "more than " limit ": split it" : "warning: aim below " most)
        if (count > limit) bad = 1
    }
    FNR == 1 {
        if (file) check(lines, 1000, 1500, long_file, file)
        file = FILENAME; long_file = inside = long_function = 0
    }
    { lines = FNR }
    /\/\/ long: [^ ]/ { long_function = 1; if (FNR <= 20) long_file = 1 }
    !inside && /^[A-Za-z_]/ { head = $0; start = FNR }
    !inside && !/^#/ && /\) \{$/ {
        inside = 1
        sub(/\(.*/, "", head)
        n = split(head, word, /[ *]+/)
    }
    inside && /^}/ {
        check(FNR - start + 1, 60, 120, long_function, file ":" start ": " word[n])
        inside = long_function = 0
    }
    !inside && /^$/ { long_function = 0 }
    END { check(lines, 1000, 1500, long_file, file); exit bad }'
