#!/bin/sh
# The source tarball of the last commit can be configured and knows its commit where there is no git. dist_test.sh SOURCE
# CC. Exit status 77: skipped, it says why.
set -eu
source=$1 cc=$2
git -C "$source" rev-parse --verify -q HEAD >/dev/null 2>&1 || { echo "skip: this is not a working copy of git"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
file=$("$source/tools/dist.sh" "$work" 2>"$work/notes")

# No git: one that fails stands before it.
mkdir "$work/bin" "$work/source"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/git"
chmod +x "$work/bin/git"
PATH=$work/bin:$PATH
tar -xzf "$file" -C "$work/source" --strip-components=1
cd "$work/source"
[ ! -e .git ] || { echo "$file has .git"; exit 1; }
CC=$cc cmake -S . -B build -G Ninja -DBUILD_TESTING=OFF -DQN_CUDA=off -DQN_MPI=off >"$work/log" 2>&1 && ninja -C build commit >>"$work/log" ||
    { cat "$work/log"; exit 1; }
want=$(command -p git -C "$source" rev-parse HEAD | cut -c-12)
grep -q "\"$want\"" build/made/cli/commit.h || { cat build/made/cli/commit.h; echo "the commit is $want"; exit 1; }
echo "$(basename "$file"), $(wc -c <"$file") bytes, is configured without git as $want"
