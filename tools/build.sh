#!/bin/sh
# Configures a folder if that was not done, and builds in it: build.sh FOLDER "CMAKE OPTIONS" [TARGET...].
# The first build in a folder shows its progress on a terminal. Otherwise there is something to read only if there is
# something to mend.
set -eu
folder=$1
options=$2
shift 2
[ -f "$folder/build.ninja" ] || cmake -S . -B "$folder" -G Ninja --log-level=WARNING $options
if [ -t 1 ] && [ ! -f "$folder/.ninja_log" ]; then exec ninja -C "$folder" "$@"; fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
ninja -C "$folder" --quiet "$@" >"$log" 2>&1 || status=$?
grep -vE '^(ninja: no work to do|-- |\[0/[0-9]+\] Re-checking)' "$log" || true
exit $status
