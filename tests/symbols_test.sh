#!/bin/sh
# The shared library exports exactly what quern.h declares with QN_API, and the library has no
# writable data, for no function of it may keep state. symbols_test.sh SOURCE LIBQUERN.SO LIBQUERN.A
set -eu
source=$1 shared=$2 static=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A declaration ends at its semicolon; its name is the word before the first bracket.
sed 's,//.*,,' "$source/include/quern.h" | tr '\n' ' ' | tr ';' '\n' |
    sed -n 's/.*QN_API[^(]*[ *]\(qn_[a-z0-9_]*\)(.*/\1/p' | sort >"$work/declared"
nm -D --defined-only "$shared" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
[ "$(wc -l <"$work/declared")" -gt 20 ] || { echo "found only these declarations:"; cat "$work/declared"; exit 1; }
diff -u "$work/declared" "$work/exported" || { echo "quern.h (-) and the exports of $shared (+) differ"; exit 1; }

readelf -d "$shared" | grep -q 'SONAME.*\[libquern\.so\.[0-9]*\]' || { echo "$shared has no versioned soname"; exit 1; }

size -A "$static" | awk '
    / ex / { object = $1 }
    ($1 ~ /^\.(data|bss|tdata|tbss)(\.|$)/) && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 {
        print object " has " $2 " bytes in " $1 ": a writable global"; bad = 1
    }
    END { exit bad }'
echo "$(wc -l <"$work/declared") functions, all exported, nothing else; no writable data"
