#!/bin/sh
# The shared library exports exactly what quern.h declares with QN_API, and the library has no
# writable data, for no function of it may keep state. The list of the Debian package names the same functions with the
# version that brought each. symbols_test.sh SOURCE LIBQUERN.SO LIBQUERN.A [--update], which adds new ones to that list.
set -eu
source=$1 shared=$2 static=$3 update=${4:-}
listed=$source/debian/libquern0.symbols
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A declaration ends at its semicolon; its name is the word before the first bracket.
sed 's,//.*,,' "$source/include/quern.h" | tr '\n' ' ' | tr ';' '\n' |
    sed -n 's/.*QN_API[^(]*[ *]\(qn_[a-z0-9_]*\)(.*/\1/p' | sort >"$work/declared"
nm -D --defined-only "$shared" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
[ "$(wc -l <"$work/declared")" -gt 20 ] || { echo "found only these declarations:"; cat "$work/declared"; exit 1; }
diff -u "$work/declared" "$work/exported" || { echo "quern.h (-) and the exports of $shared (+) differ"; exit 1; }

version=$(awk '/^#define QN_VERSION_/ { print $3 }' "$source/include/quern.h" | paste -sd.)
soname=$(readelf -d "$shared" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = "libquern.so.${version%%.*}" ] || { echo "$shared has the soname '$soname', and its version is $version"; exit 1; }

# Lines " NAME@Base VERSION", below those about the library.
head -n 1 "$listed" | grep -q "^$soname libquern${version%%.*} " || { echo "$listed is not of $soname"; exit 1; }
sed -n 's/^ \(.*\)@Base .*/\1/p' "$listed" >"$work/listed"
if [ "$update" = --update ]; then
    { grep -v '^ ' "$listed"; { grep '^ ' "$listed"; comm -23 "$work/declared" "$work/listed" | sed "s/.*/ &@Base $version/"; } | sort; } >"$work/new"
    cp "$work/new" "$listed"
    exit 0
fi
diff -u "$work/declared" "$work/listed" || {
    echo "quern.h (-) and $listed (+) differ; what was added: tests/symbols_test.sh . LIBQUERN.SO LIBQUERN.A --update"
    exit 1
}

size -A "$static" | awk '
    / ex / { object = $1 }
    ($1 ~ /^\.(data|bss|tdata|tbss)(\.|$)/) && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 {
        print object " has " $2 " bytes in " $1 ": a writable global"; bad = 1
    }
    END { exit bad }'
echo "$(wc -l <"$work/declared") functions, all exported, nothing else; no writable data"
