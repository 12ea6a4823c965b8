#!/bin/sh
# Checks that every relative link in a Markdown file, and every docs/*.md that the help texts name, leads to a file: links.sh.
set -eu
cd "$(dirname "$0")/.."
bad=0
lost() { # where, what
    echo "$1: $2 does not exist"
    bad=1
}
for page in $(git ls-files -co --exclude-standard '*.md' | grep -v '^tests/data/'); do
    [ -f "$page" ] || continue
    for link in $(grep -oE '\]\([^)# ]+' "$page" | cut -c3- | grep -vE '^[a-z]+:'); do
        [ -e "$(dirname "$page")/$link" ] || lost "$page" "$link"
    done
done
for source in $(grep -lE 'docs/[a-z0-9/-]+\.md' -r src include examples); do
    for link in $(grep -oE 'docs/[a-z0-9/-]+\.md' "$source"); do
        [ -e "$link" ] || lost "$source" "$link"
    done
done
exit $bad
