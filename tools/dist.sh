#!/bin/sh
# Writes the source tarball of the last commit: dist.sh FOLDER. It builds without git and knows its commit; the same
# commit gives the same bytes.
set -eu
cd "$(dirname "$0")/.."
folder=$1
git rev-parse --git-dir >/dev/null 2>&1 || { echo "dist: this is not a working copy of git" >&2; exit 1; }
git diff --quiet HEAD || echo "dist: changes that are not committed are left out" >&2
version=$(git show HEAD:include/quern.h | awk '/^#define QN_VERSION_/ { print $3 }' | paste -sd.)
file=$folder/quern-$version.tar.gz
mkdir -p "$folder"
git archive --format=tar --prefix="quern-$version/" HEAD | gzip -n >"$file.part"
mv "$file.part" "$file"
echo "$file"
