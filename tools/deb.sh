#!/bin/sh
# Builds the Debian packages of the last commit, or of these sources where there is no git, into build-deb/ and checks
# them with lintian: deb.sh.
set -eu
cd "$(dirname "$0")/.."
rm -rf build-deb
mkdir -p build-deb/source
if [ -e .git ] && command -v git >/dev/null; then
    tar -xzf "$(tools/dist.sh build-deb)" -C build-deb/source --strip-components=1
else
    tar -c --exclude='./build*' --exclude=./.git . | tar -x -C build-deb/source
fi

log=build-deb/build.log
(cd build-deb/source && dpkg-buildpackage --build=full --no-sign) >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
rm -r build-deb/source
lintian --allow-root --fail-on error,warning build-deb/*.changes
ls build-deb/*.deb
