#!/bin/sh
# Fills a folder with the libraries that Quern needs, as Debian has them for another architecture: sysroot.sh ARCH FOLDER.
# What is installed on this machine stays as it is. Says nothing when the folder is there already.
set -eu
arch=$1
folder=$2
list=$(dirname "$0")/packages.txt
# Libraries alone: what runs on this machine comes from tools/setup.sh. MPI is for an optional part.
wanted=$(awk '$1 == "build" && $2 ~ /-dev$/ && $2 !~ /openmpi/ { print $2 }' "$list")
stamp=$folder/packages
[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "sysroot: no apt-get here; put the libraries for $arch into $folder, and their list into $stamp:" $wanted >&2
    exit 1
fi
echo "sysroot: fetching the libraries for $arch into $folder"
rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
: >"$apt/status"
# A machine of that architecture on which nothing is installed, so that all that is needed comes along.
fetch() {
    apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Debug::NoLocking=1 \
        -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@" >"$apt/log" 2>&1
}
# An update that fails for one source may still have brought what is needed: the install decides.
fetch update || echo "sysroot: apt-get update failed, trying with what it brought" >&2
if ! fetch --yes --no-install-recommends --download-only install $wanted; then
    tail -n 20 "$apt/log" >&2
    echo "sysroot: could not fetch the libraries for $arch" >&2
    exit 1
fi
for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder"; done
# Links that begin at the root of a machine begin at that of the folder.
find "$folder" -type l -lname '/*' | while read -r link; do
    ln -srfT "$folder$(readlink "$link")" "$link"
done
echo "$wanted" >"$stamp"
