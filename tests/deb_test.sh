#!/bin/sh
# Packages in a fresh Debian: deb_test.sh FOLDER installs each of FOLDER's packages in a system that debootstrap makes,
# runs the tests of debian/tests with nothing but what they ask for, and purges what it installed: nothing of it may be
# left. Needs root and a network; the mirror is the one that this machine's apt has.
set -eu
fail() {
    echo "test-deb: $*" >&2
    exit 1
}
source=$(cd "$(dirname "$0")/.." && pwd)
ls "$1"/*.deb >/dev/null 2>&1 || fail "there are no packages in $1: make deb"
folder=$(cd "$1" && pwd)
[ "$(id -u)" = 0 ] || fail "root is needed, for a chroot"
. /etc/os-release
mirror=$(apt-get indextargets --format '$(CODENAME) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
    awk -v name="$VERSION_CODENAME" '$1 == name && $2 == "Debian" { print $3; exit }')
[ -n "$mirror" ] || fail "apt on this machine has no mirror of Debian $VERSION_CODENAME"

# What is mounted goes with this process.
[ "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"
root=$folder/root
rm -rf --one-file-system "$root"
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
log=$folder/test.log
quietly() { "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "failed: $*"; }; }
apt() { quietly env DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" apt-get -y --no-install-recommends "$@"; }

echo "test-deb: a fresh Debian $VERSION_CODENAME"
quietly debootstrap --variant=minbase "$VERSION_CODENAME" "$root" "$mirror"
mount -t proc proc "$root/proc"
cp /etc/resolv.conf "$root/etc/"
apt-config dump | grep -i '^Acquire::.*proxy' >"$root/etc/apt/apt.conf.d/proxy" || true
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service is started
chmod +x "$root/usr/sbin/policy-rc.d"
mkdir "$root/packages"
cp "$folder"/*.deb "$root/packages/"
(cd "$root/packages" && dpkg-scanpackages . >Packages 2>/dev/null)
echo 'deb [trusted=yes] file:/packages ./' >"$root/etc/apt/sources.list.d/packages.list"
apt update
names=$(sed -n 's/^Package: //p' "$root/packages/Packages" | grep -v -- '-dbgsym$')

# Files of the system that are called after us, and lines of its tables.
traces() {
    find "$root" -xdev \( -path "$root/packages" -o -path "$root/var/lib/apt/lists" -o -path "$root/proc" \) -prune \
        -o -name '*quern*' -print | sed "s|^$root||"
    chroot "$root" dpkg-query -W -f '${Package} ${db:Status-Status}\n' | grep quern || true
}
[ -z "$(traces)" ] || fail "before anything was installed there is $(traces)"

try() { # NAME, PACKAGES, RESTRICTIONS
    echo "test-deb: $1: $2"
    apt install $2
    rm -rf "$root/tmp/test"
    mkdir "$root/tmp/test"
    cp "$source/debian/tests/$1" "$root/tmp/script"
    user=nobody
    case $3 in *needs-root*) user=root ;; esac
    chown "$user" "$root/tmp/test"
    quietly chroot --userspec="$user" "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
        AUTOPKGTEST_TMP=/tmp/test sh -c 'cd /tmp/test && exec ../script'
    rm -rf "$root/tmp/test" "$root/tmp/script"
}
purge() {
    apt purge $names
    left=$(traces)
    [ -z "$left" ] || fail "after purging there is still $left"
}

stanzas=$(awk '/^Tests: /{ name = $2 } /^Depends: /{ sub(/^Depends: /, ""); gsub(/, */, ","); depends = $0 }
    /^Restrictions: /{ restrictions = $2 }
    /^$/ { print name, depends, restrictions; name = restrictions = "" }
    END { if (name) print name, depends, restrictions }' "$source/debian/tests/control")
for stanza in $(echo "$stanzas" | tr ' ' ';'); do
    IFS=';' read -r name depends restrictions <<END
$stanza
END
    try "$name" "$(echo "$depends" | tr ',' ' ')" "$restrictions"
    purge
done

# All at once; what the administrator has changed or brought survives the package that comes again, and its removal.
echo "test-deb: all together, once more, and removed"
apt install $names
echo key >"$root/etc/quern.keys"
echo "# changed" >>"$root/etc/default/quern-server"
echo model >"$root/var/lib/quern/my.gguf"
apt install --reinstall $names
apt remove $names
[ "$(cat "$root/etc/quern.keys")" = key ] && grep -q '^# changed' "$root/etc/default/quern-server" ||
    fail "the service's configuration was lost when packages were replaced or removed"
apt purge $names
[ "$(cat "$root/var/lib/quern/my.gguf")" = model ] || fail "the administrator's model was removed"
rm -r "$root/var/lib/quern"
left=$(traces)
[ -z "$left" ] || fail "after purging there is still $left"
echo "test-deb: $(echo "$names" | wc -l) packages were installed, used and purged without a trace"
