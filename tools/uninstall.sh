#!/bin/sh
# Removes what `cmake --install BUILD --prefix PREFIX` puts there, below $DESTDIR if that is set: uninstall.sh BUILD
# PREFIX. Below the prefix, folders go that are called after us and have become empty.
set -eu
build=$1 prefix=$2
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
from=${DESTDIR:-}$prefix
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
DESTDIR=$stage/root cmake --install "$build" --prefix "$prefix" >"$stage/log" || { cat "$stage/log" >&2; exit 1; }
cd "$stage/root$prefix"
find . ! -type d | while read -r file; do
    [ ! -e "$from/$file" ] && [ ! -L "$from/$file" ] && continue
    rm -- "$from/$file" || exit 1
    echo "$file" >>"$stage/removed"
done
find . -depth -type d -path '*quern*' | while read -r folder; do
    rm -rf -- "$from/$folder/__pycache__" # which Python has made
    [ ! -d "$from/$folder" ] || rmdir --ignore-fail-on-non-empty -- "$from/$folder"
done
if [ -f "$stage/removed" ]; then
    echo "removed $(wc -l <"$stage/removed") files below $from"
else
    echo "there was nothing of Quern below $from"
fi
