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
for file in $(find "$prefix" -name 'libquern*' ! -name '*.3' -type f) $(find "$prefix/bin" -type f 2>/dev/null); do
    ! readelf -S "$file" | grep -q '\.debug_info' || { echo "$file has debug information"; exit 1; }
done
cmp "$source/LICENSE" "$prefix/share/doc/quern/LICENSE"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name quern.pc)")
export PKG_CONFIG_PATH
lib=$(dirname "$PKG_CONFIG_PATH")
model=$source/models/quern-draft-Q8_0.gguf

# try NAME ARGUMENTS: builds an example, and compares what it prints; its input is $input.
input=
try() {
    name=$1
    shift
    $cc -std=c17 -Wall -Wextra -Werror -o "$work/$name" "$source/examples/$name.c" \
        $(pkg-config --cflags --libs quern) -lm
    printf "$input" | LD_LIBRARY_PATH=$lib "$work/$name" "$@" >"$work/$name.out"
    diff -u "$source/examples/$name.expected" "$work/$name.out"
    tried="${tried:-} $name"
}
mini=$source/models/quern-mini-Q8_0.gguf
try hello "$model" "Once upon a time"
try generate "$mini" "$model" "What is 12 + 30?" "Name the capital of France."
input='My name is Kevin.\nWhat is my name?\n'
try chat "$model"
input=
try embed "$mini" "a cat sleeps" "the cat is asleep" "12 + 30 = 42"
try sample "$model" "Once upon a time"
try rows "$model" "Once upon a time there was a cat" "Once upon a time there was a dog"
try state "$model" "$work/saved" "Once upon a time"
try inside "$model" "Once upon a time"
for file in "$source"/examples/*.c; do
    name=$(basename "$file" .c)
    case " $tried " in *" $name "*) ;; *) echo "nobody tries examples/$name.c"; exit 1 ;; esac
done

# Manuals and completion lie where man and the shells look.
share=$prefix/share
for file in man/man1/quern.1 man/man1/quern-run.1 man/man3/libquern.3 man/man3/qn_generate.3 \
    bash-completion/completions/quern zsh/site-functions/_quern fish/vendor_completions.d/quern.fish; do
    [ -s "$share/$file" ] || { echo "$file is not installed"; exit 1; }
done
cmp "$share/bash-completion/completions/quern" "$build/pages/quern.bash"
[ -f "$share/$(sed -n 's/^\.so /man\//p' "$share/man/man3/qn_generate.3")" ]
grep -q "^\.TH LIBQUERN 3 .*\"Quern $(pkg-config --modversion quern)\"" "$share/man/man3/libquern.3"

# Nothing tells where it was built.
if grep -rlF -e "$source" -e "$build" "$prefix"; then echo "these name folders of the machine that built them"; exit 1; fi

# Plug-ins are looked for in the folder `quern` of the libraries, by the program and by the library of other programs.
for plugin in "$build"/libquern-*.so; do
    [ ! -f "$plugin" ] || [ -f "$lib/quern/${plugin##*/}" ] || { echo "${plugin##*/} is not installed"; exit 1; }
done
cat >"$work/gpu.c" <<END
#include <quern.h>
#include <stdio.h>
int main(void) {
    qn_err err;
    if (qn_device_check("cuda", &err)) puts(err.message);
    return 0;
}
END
$cc -std=c17 -o "$work/gpu" "$work/gpu.c" $(pkg-config --cflags --libs quern)
mkdir -p "$lib/quern"
mv "$lib/quern" "$work/plugins"
mkdir "$lib/quern"
echo "not a library" >"$lib/quern/libquern-cuda.so"
ln -s "$prefix/bin/quern" "$work/link"
for program in "$prefix/bin/quern devices" "quern devices" "$work/link devices" "$work/gpu"; do
    PATH=$prefix/bin:$PATH LD_LIBRARY_PATH=$lib $program 2>&1 | grep -q 'libquern-cuda.so cannot be used: .*/quern/libquern-cuda.so: file too short' ||
        { echo "$program does not find its plug-ins"; exit 1; }
done
rm -r "$lib/quern"
mv "$work/plugins" "$lib/quern"

# The same from CMake, as a project of somebody else.
CC=$cc cmake -S "$source/tests/find_package" -B "$work/project" -DCMAKE_PREFIX_PATH="$prefix" \
    -DHELLO="$source/examples/hello.c" >"$work/log" 2>&1 && cmake --build "$work/project" >>"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
for hello in hello hello_static; do
    "$work/project/$hello" "$model" "Once upon a time" | diff -u "$work/hello.out" - || { echo "$hello of CMake"; exit 1; }
done

# The Python package finds the library of its prefix.
if [ -x /usr/bin/python3 ]; then
    PYTHONPATH=$prefix/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c "
import quern
assert quern.library_path.startswith('$prefix'), quern.library_path
assert quern.Model('$model').generate('Once upon a time', max_tokens=3).tokens"
fi

rm "$lib"/libquern.so*
$cc -std=c17 -o "$work/hello" "$source/examples/hello.c" $(pkg-config --static --cflags --libs quern)
"$work/hello" "$model" "Once upon a time" >"$work/static.out"
diff -u "$work/hello.out" "$work/static.out"

test ! -x "$prefix/bin/quern" || "$prefix/bin/quern" --version | grep -q "$(pkg-config --modversion quern)"

# What was installed goes again, and nothing else does.
touch "$lib/other" "$prefix/bin/other"
mkdir "$prefix/share/quern/__pycache__" # as Python would beside its modules
"$source/tools/uninstall.sh" "$build" "$prefix" >"$work/log"
left=$(cd "$prefix" && find . ! -type d -o -name '*quern*' | sort | tr '\n' ' ')
[ "$left" = "./bin/other ./${lib#"$prefix/"}/other " ] || { echo "make uninstall left $left"; exit 1; }
"$source/tools/uninstall.sh" "$build" "$prefix" | grep -q 'nothing of Quern'
echo "installed, built against it four times with one answer, and removed"
