#!/bin/sh
# What says the same in two places: the version of the packages and the header's, what packages are built from and
# tools/packages.txt, what the continuous build calls and the Makefile. packages_test.sh SOURCE
set -eu
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
complain() {
    echo "$*"
    bad=1
}

version=$(awk '/^#define QN_VERSION_/ { print $3 }' include/quern.h | paste -sd.)
packaged=$(sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog)
[ "$packaged" = "$version" ] || complain "debian/changelog: version $packaged, and quern.h has $version"

# The libraries of `make`, but for those of tests alone, and the tools.
sed -n '/^Build-Depends:/,/^[A-Z][^:]*:/p' debian/control | sed '1s/^[^:]*://; 2,${/^[A-Z]/d}' |
    tr ',' '\n' | awk 'NF { print $1 }' | sort >"$work/wanted"
[ "$(wc -l <"$work/wanted")" -gt 10 ] || complain "debian/control: Build-Depends has only $(cat "$work/wanted")"
awk '$1 == "build" && $2 ~ /^lib.*-dev$|^zlib/ && $2 !~ /^libc6-dev|^libcmocka/ { print $2 }' tools/packages.txt |
    sort >"$work/libraries"
for package in $(comm -23 "$work/libraries" "$work/wanted"); do
    complain "tools/packages.txt: $package is not in Build-Depends of debian/control"
done
for package in $(grep -v '^debhelper-compat$\|^dh-sequence-python3$' "$work/wanted"); do
    grep -qE "^(build|package) +$package( |\$)" tools/packages.txt ||
        complain "debian/control: $package is not in tools/packages.txt"
done

# A program that links the static library needs the same libraries as the ones that CMake and pkg-config name.
sed -n '/^Package: libquern-dev/,/^$/p' debian/control >"$work/dev"
for module in $(sed -n 's/^set(dependencies \(.*\))/\1/p' CMakeLists.txt); do
    file=$(pkg-config --variable=pcfiledir "$module")/$module.pc
    package=$(dpkg-query -S "$file" 2>/dev/null | sed 's/:.*//') || continue # not a Debian system
    grep -q "\b$package\b" "$work/dev" || complain "debian/control: libquern-dev does not depend on $package, which has $module.pc"
done

# What the jobs run, and that forms for issues are ones; python3-yaml is in tools/packages.txt.
/usr/bin/python3 - .github/workflows/*.yml >"$work/commands" <<'END' || bad=1
import glob, sys, yaml

def strings(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "command"):
                print(value)
            strings(value)
    elif isinstance(node, list):
        for value in node:
            strings(value)

for path in sys.argv[1:]:
    jobs = yaml.safe_load(open(path))["jobs"]
    assert jobs and all(job["steps"] for job in jobs.values()), path
    strings(jobs)
for path in glob.glob(".github/ISSUE_TEMPLATE/*.yml"):
    form = yaml.safe_load(open(path))
    if path.endswith("config.yml"):
        continue
    assert form["name"] and form["description"], path
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked) and all(part["attributes"]["label"] for part in asked), path
END
grep -oE '\bmake( [a-z0-9-]+)+' "$work/commands" | sed 's/^make //' | tr ' ' '\n' | sort -u >"$work/called"
[ "$(wc -l <"$work/called")" -gt 3 ] || complain ".github/workflows call only these targets of the Makefile: $(cat "$work/called")"
while read -r target; do
    grep -q "^$target:" Makefile || complain ".github/workflows: the Makefile has no target $target"
done <"$work/called"
[ $bad = 0 ] && echo "version $version; $(wc -l <"$work/wanted") packages to build from; $(wc -l <"$work/called") targets called"
exit $bad
