#!/bin/sh
# Installs the build into a temporary folder and builds the examples against it as a user would, with
# the shared and with the static library. install_test.sh SOURCE BUILD CC
set -eu
source=$1 build=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" --strip >"$work/log" || { cat "$work/log"; exit 1; }

# What users install has no debug information, and a licence.
for file in $(find "$prefix" -name 'libquern.*' -type f) $(find "$prefix/bin" -type f 2>/dev/null); do
    ! readelf -S "$file" | grep -q '\.debug_info' || { echo "$file has debug information"; exit 1; }
done
cmp "$source/LICENSE" "$prefix/share/doc/quern/LICENSE"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name quern.pc)")
export PKG_CONFIG_PATH
lib=$(dirname "$PKG_CONFIG_PATH")
model=$source/models/quern-draft-Q8_0.gguf

$cc -std=c17 -Wall -Wextra -Werror -o "$work/hello" "$source/examples/hello.c" \
    $(pkg-config --cflags --libs quern)
LD_LIBRARY_PATH=$lib "$work/hello" "$model" "Once upon a time" >"$work/shared.out"
diff -u "$source/examples/hello.expected" "$work/shared.out"

$cc -std=c17 -Wall -Wextra -Werror -o "$work/generate" "$source/examples/generate.c" \
    $(pkg-config --cflags --libs quern)
LD_LIBRARY_PATH=$lib "$work/generate" "$source/models/quern-mini-Q8_0.gguf" "$model" \
    "What is 12 + 30?" "Name the capital of France." >"$work/generate.out"
diff -u "$source/examples/generate.expected" "$work/generate.out"

$cc -std=c17 -Wall -Wextra -Werror -o "$work/chat" "$source/examples/chat.c" \
    $(pkg-config --cflags --libs quern)
printf 'My name is Kevin.\nWhat is my name?\n' | LD_LIBRARY_PATH=$lib "$work/chat" "$model" >"$work/chat.out"
diff -u "$source/examples/chat.expected" "$work/chat.out"

$cc -std=c17 -Wall -Wextra -Werror -o "$work/state" "$source/examples/state.c" \
    $(pkg-config --cflags --libs quern)
LD_LIBRARY_PATH=$lib "$work/state" "$model" "$work/saved" "Once upon a time" >"$work/state.out"
diff -u "$source/examples/state.expected" "$work/state.out"

$cc -std=c17 -Wall -Wextra -Werror -o "$work/inside" "$source/examples/inside.c" \
    $(pkg-config --cflags --libs quern)
LD_LIBRARY_PATH=$lib "$work/inside" "$model" "Once upon a time" >"$work/inside.out"
diff -u "$source/examples/inside.expected" "$work/inside.out"

rm "$lib"/libquern.so*
$cc -std=c17 -o "$work/hello" "$source/examples/hello.c" $(pkg-config --static --cflags --libs quern)
"$work/hello" "$model" "Once upon a time" >"$work/static.out"
diff -u "$work/shared.out" "$work/static.out"

test ! -x "$prefix/bin/quern" || "$prefix/bin/quern" --version | grep -q "$(pkg-config --modversion quern)"
echo "installed, built against it twice, and both say the same"
