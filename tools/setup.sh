#!/bin/sh
# Installs the Debian packages of tools/packages.txt that are missing: setup.sh [group...] (default: build).
# Says nothing when all are there. Needs root, or sudo.
set -eu
list=$(dirname "$0")/packages.txt
groups=" ${*:-build} "
wanted=$(while read -r group package _; do
    case $groups in *" $group "*) echo "$package" ;; esac
done <"$list")

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: not a Debian system, so nothing is installed; Quern needs what Debian calls:" $wanted >&2
    exit 0
fi

# Unknown packages make dpkg-query fail after it has printed the known ones.
have=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' $wanted 2>/dev/null || true) "
missing=
for package in $wanted; do
    case $have in *" installed:$package "*) ;; *) missing="$missing $package" ;; esac
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "setup: missing packages, and neither root nor sudo to install them. As root, run:" >&2
        echo "    apt-get update && apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    as_root=sudo
    [ -t 0 ] || as_root="sudo -n" # nobody is there to type a password
fi

echo "setup: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1
}
# An update that fails for one source may still have brought what is needed: the install decides.
apt update || echo "setup: apt-get update failed, trying with the package lists at hand" >&2
if ! apt install --yes --no-install-recommends $missing; then
    tail -n 20 "$log" >&2
    echo "setup: could not install$missing" >&2
    exit 1
fi
