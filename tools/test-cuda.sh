#!/bin/bash
# Tests and measures the GPU of this machine with what is built; builds nothing, and needs bash and coreutils alone.
#   tools/test-cuda.sh [--tests | --bench] [BUILD [MODELS ...]]
#   tools/test-cuda.sh --pack FOLDER [BUILD]   programs, and the libraries that they need, for another machine
# BUILD: the build folder, or one that was packed (default: build). MODELS: more model files, or folders whose *.gguf are
# taken; the first file is what is measured. QN_CUDA_LIBRARY names another library, DEVICE another device (default: cuda),
# LIVES the number of random lives of a batch (default: 1000). What hangs is ended, and counts as failed.
set -u
cd "$(dirname "$0")/.." || exit 2
usage() { echo "test-cuda.sh [--tests | --bench] [BUILD [MODELS ...]] | --pack FOLDER [BUILD]" >&2; exit 2; }
programs=(test_backends_devices test_backends_cuda test_runtime_devices test_runtime_record test_runtime_cuda
    test_runtime_gpu_layers test_session_interleave test_session_company)

# --- packing ---

# The loader and all libraries of a machine that has them, so that another needs its driver alone.
pack() { # folder, build
    local to=$1 build=$2 name file
    mkdir -p "$to/tests" "$to/lib" || exit 2
    cp "$build/quern" "$to/" || exit 2
    for name in "${programs[@]}"; do
        if [ -x "$build/tests/$name" ]; then cp "$build/tests/$name" "$to/tests/"; else echo "$name is not built"; fi
    done
    for file in "$build"/tests/libfake_cuda.so "$build"/tests/libodd_cuda_*.so; do [ ! -f "$file" ] || cp "$file" "$to/tests/"; done
    if [ -f "$build/libquern-cuda.so" ]; then cp "$build/libquern-cuda.so" "$to/"; else echo "libquern-cuda.so is not built"; fi
    ldd "$to/quern" "$to"/tests/test_* "$to"/*.so 2>/dev/null | while read -r _ arrow path _; do
        [ "$arrow" != "=>" ] || [ ! -f "$path" ] || [ -f "$to/lib/${path##*/}" ] || cp -L "$path" "$to/lib/"
    done
    cp -L /lib64/ld-linux-x86-64.so.2 "$to/lib/" || exit 2
    ! command -v strip >/dev/null || strip --strip-unneeded "$to/quern" "$to"/tests/* "$to"/*.so 2>/dev/null
    sed -n 's/^CMAKE_HOME_DIRECTORY:[^=]*=//p' "$build/CMakeCache.txt" >"$to/source"
    (cd "$build" && pwd) >"$to/built"
    du -sh "$to"
}

do_tests=1 do_bench=1
case "${1:-}" in
--pack) [ $# -ge 2 ] || usage; pack "$2" "${3:-build}"; exit ;;
--tests) do_bench=0; shift ;;
--bench) do_tests=0; shift ;;
-*) usage ;;
esac
build=${1:-build}
[ $# = 0 ] || shift
build=$(cd "$build" 2>/dev/null && pwd) || { echo "test-cuda: there is no build folder"; exit 2; }
shopt -s globstar nullglob
more=()
for given in "$@"; do
    if [ -d "$given" ]; then
        for file in "$given"/**/*.gguf; do more+=("$file"); done
    elif [ -f "$given" ]; then
        more+=("$given")
    else
        echo "test-cuda: there is no model $given"
        exit 2
    fi
done
device=${DEVICE:-cuda}
export QN_CUDA_LIBRARY=${QN_CUDA_LIBRARY:-$build/libquern-cuda.so}
[ -x "$build/quern" ] || { echo "test-cuda: there is no $build/quern"; exit 2; }
[ -f "$QN_CUDA_LIBRARY" ] || { echo "test-cuda: there is no $QN_CUDA_LIBRARY"; exit 2; }

# A packed program runs with its own loader and libraries; the driver's come from this machine.
loader=()
[ ! -f "$build/lib/ld-linux-x86-64.so.2" ] || loader=("$build/lib/ld-linux-x86-64.so.2" --library-path "$build/lib")
quern=(timeout -k 10 "${LIMIT:-300}" "${loader[@]}" "$build/quern")

# Test programs know their files by the paths of the machine that built them.
link_path() { # path there, path here
    [ -n "$1" ] && [ ! -e "$1" ] || return 0
    mkdir -p "${1%/*}" && ln -s "$2" "$1" || echo "test-cuda: $1 cannot be made: tests that need it fail"
}
if [ -f "$build/source" ]; then
    link_path "$(cat "$build/source")" "$PWD"
    link_path "$(cat "$build/built")" "$build"
fi

work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0 failures=()

pass() { passed=$((passed + 1)); }
fail() { # what, and the file that says why
    failed=$((failed + 1))
    failures+=("$1")
    echo "FAILED $1"
    [ -z "${2:-}" ] || tail -n 12 "$2"
}

# --- test programs ---

program() { # name, arguments
    local at=$build/tests/$1 begin=$SECONDS
    if [ ! -x "$at" ]; then
        echo "skipped $1: it is not built"
        skipped=$((skipped + 1))
    elif timeout -k 10 "${LIMIT:-900}" "${loader[@]}" "$at" "${@:2}" >"$work/log" 2>&1; then
        echo "passed $1 ($((SECONDS - begin)) s)"
        pass
    else
        fail "$1" "$work/log"
    fi
}

# --- the same bytes from the CPU and the GPU ---

# same WHAT COMMAND ...: what a command writes, on both; FILE among its words is a file that is compared, too. `extra` are
# words for the GPU alone.
extra=()
same() {
    local what=$1 sums=() sum where word words
    shift
    for where in cpu "$device"; do
        words=()
        for word in "$@"; do words+=("${word/#FILE/$work/out}"); done
        rm -f "$work/out"
        [ "$where" = cpu ] || words+=("${extra[@]}")
        if ! "${quern[@]}" "${words[@]}" --device "$where" >"$work/text" 2>"$work/log"; then
            fail "$what on $where" "$work/log"
            return
        fi
        # The last event of an answer has times.
        sum=$(while IFS= read -r line; do [[ $line == '{"done"'* ]] || echo "$line"; done <"$work/text" | sha256sum)
        [ ! -f "$work/out" ] || sum+=$(sha256sum <"$work/out")
        sums+=("$sum")
    done
    if [ "${sums[0]}" = "${sums[1]}" ]; then pass; else fail "$what: $device differs from cpu"; fi
}

ids() { # n: token ids that every vocabulary has
    local n=$1 list=1 i
    for ((i = 1; i < n; i++)); do list+=,$(((i * 37 + i * i) % 199 + 1)); done
    echo "$list"
}

equal_logits() { # model
    local model=$1 mode type
    for mode in exact balanced fast; do
        same "logits of $model, $mode" logits "$model" --ids "$(ids 70)" --all -o FILE --numerics $mode
    done
    for type in f32 f16 q8_0; do
        same "logits of $model, cache $type" logits "$model" --ids "$(ids 70)" --all -o FILE --cache-type $type
    done
    same "logits of $model, chunks of 7" logits "$model" --ids "$(ids 40)" --all -o FILE --chunk 7
    same "hidden states of $model" logits "$model" --ids "$(ids 20)" --hidden -o FILE
}

# A vision tower, from a checkpoint and from a file of its own, beside the stack that reads its rows.
equal_images() {
    local model=tests/data/mini/qwen35_vl image seen rows mode
    image=$model/image.png seen=10,11,12,502
    for ((rows = 0; rows < 15; rows++)); do seen+=,500; done
    seen+=,503,20,21,22,23,24
    for mode in exact balanced fast; do
        same "logits with an image, $mode" logits $model --ids $seen --image $image --all -o FILE --numerics $mode
    done
    same "logits with an image and a file of the tower" logits $model/qwen35_vl-bf16.gguf -mm $model/mmproj-bf16.gguf \
        --ids $seen --image $image --all -o FILE
}

equal_texts() { # model with a tokenizer
    local model=$1
    same "greedy text of $model" run "$model" -p "Once upon a time" -n 200 --greedy --ignore-eos
    same "sampled text of $model" run "$model" -p "Tell a story." -n 200 --temp 0.9 --seed 7 --ignore-eos
    same "text of $model, many filters" run "$model" -p "Tell a story." -n 100 --temp 1.3 --top-p 0.9 --repeat-penalty 1.1 --seed 3
    same "text of $model with lookup" run "$model" -p "one two three one two three" -n 100 --lookup --greedy
    same "events of $model" run "$model" -p "What is 12 + 30?" -n 40 --json --logprobs 5 --greedy
    same "a JSON answer of $model" run "$model" -p "A person." -n 60 --greedy --json-schema '{"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer"}},"required":["name","age"]}'
}

tests() {
    local model name
    for name in "${programs[@]}"; do
        case $name in test_session_*) ;; *) program "$name" ;; esac
    done
    TEST_DEVICE=$device program test_session_interleave "${LIVES:-1000}"
    TEST_DEVICE=$device program test_session_company tests/data/k256/*/*.gguf
    TEST_DEVICE=$device TEST_NUMERICS=tensor program test_session_company tests/data/k256/*/*.gguf
    for model in tests/data/mini/*/config.json tests/data/k256/*/*.gguf models/*.gguf "${more[@]}"; do
        equal_logits "${model%/config.json}"
        extra=(--gpu-layers 1)
        same "logits of ${model%/config.json}, one layer on the GPU" logits "${model%/config.json}" --ids "$(ids 30)" --all -o FILE
        extra=()
        echo "logits of ${model%/config.json}: $failed of $((passed + failed)) failed so far"
    done
    equal_images
    echo "images: $failed of $((passed + failed)) failed so far"
    if [ ! -f models/quern-mini-Q8_0.gguf ]; then
        echo "skipped texts: the bundled models are not here"
        skipped=$((skipped + 1))
        return
    fi
    same "a long prompt" logits models/quern-mini-Q8_0.gguf --ids "$(ids 700)" --all -o FILE
    for model in models/*.gguf "${more[@]}"; do
        equal_texts "$model"
        echo "texts of $model: $failed of $((passed + failed)) failed so far"
    done
    printf 'a cat sleeps\nthe cat is asleep\n12 + 30 = 42\n' >"$work/lines"
    same "embeddings" embed models/quern-mini-Q8_0.gguf -f "$work/lines"
    same "perplexity" eval models/quern-mini-Q8_0.gguf --ppl models/README.md
    same "a model with a draft model" run models/quern-mini-Q8_0.gguf -md models/quern-draft-Q8_0.gguf -p "Once" -n 60 --greedy
}

# --- speed ---

bench() { # what, options
    local what=$1
    shift
    echo
    echo "--- $what: quern bench $* --device $device"
    "${quern[@]}" bench "$@" --device "$device" 2>&1 || fail "bench: $what"
}

speed() {
    local model=${more[0]:-$probe} long=2048 depth=4096
    [ ${#more[@]} -gt 0 ] || long=64 depth=64 # small ones have a short context
    [ "$model" != models/quern-mini-Q8_0.gguf ] || long=1024 depth=1024
    bench "limits of the GPU" --limits
    bench "decode and prefill, nothing cached; opening" "$model" -p $long -n 64 -d 0 --limits --open
    bench "decode, $depth cached" "$model" -p 512 -n 64 -d $depth
    bench "128 sequences" "$model" -p 512 -n 32 -b 128
}

# The first model that is here.
probe=
for model in models/quern-mini-Q8_0.gguf tests/data/k256/*/*.gguf tests/data/mini/*/*.gguf "${more[@]}"; do
    [ -n "$probe" ] || [ ! -f "$model" ] || probe=$model
done
"${quern[@]}" devices || exit 2
if ! "${quern[@]}" logits "$probe" --ids 1,2 --top 1 --device "$device" >"$work/text" 2>"$work/log"; then
    cat "$work/log"
    echo "test-cuda: the device $device cannot be used"
    exit 2
fi
[ $do_tests = 0 ] || tests
[ $do_bench = 0 ] || speed
echo
echo "test-cuda: $passed passed, $failed failed, $skipped skipped, in $SECONDS s"
for what in "${failures[@]}"; do echo "  failed: $what"; done
[ $failed = 0 ]
