#!/bin/bash
# Tests and measures the GPU of this machine with what is built; builds nothing, and needs bash and coreutils alone.
#   tools/test-cuda.sh [--tests | --bench] [BUILD [MODELS ...]]
# BUILD: the build folder (default: build). MODELS: more model files, or folders whose *.gguf are taken; the first file is
# what is measured. QN_CUDA_LIBRARY names another library, DEVICE another device (default: cuda).
set -u
cd "$(dirname "$0")/.." || exit 2
do_tests=1 do_bench=1
case "${1:-}" in
--tests) do_bench=0; shift ;;
--bench) do_tests=0; shift ;;
-*) echo "test-cuda.sh [--tests | --bench] [BUILD [MODELS ...]]" >&2; exit 2 ;;
esac
build=${1:-build}
[ $# = 0 ] || shift
shopt -s globstar nullglob
more=()
for given in "$@"; do
    if [ -d "$given" ]; then
        for file in "$given"/**/*.gguf; do more+=("$file"); done
    else
        more+=("$given")
    fi
done
device=${DEVICE:-cuda}
quern=$build/quern
export QN_CUDA_LIBRARY=${QN_CUDA_LIBRARY:-$PWD/$build/libquern-cuda.so}
[ -x "$quern" ] || { echo "test-cuda: there is no $quern"; exit 2; }
work=$(mktemp -d)
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

program() { # name
    local at=$build/tests/$1 begin=$SECONDS
    if [ ! -x "$at" ]; then
        echo "skipped $1: it is not built"
        skipped=$((skipped + 1))
    elif "$at" >"$work/log" 2>&1; then
        echo "passed $1 ($((SECONDS - begin)) s)"
        pass
    else
        fail "$1" "$work/log"
    fi
}

# --- the same bytes from the CPU and the GPU ---

# same WHAT COMMAND ...: what a command writes, on both; FILE among its words is a file that is compared, too.
same() {
    local what=$1 sums=() sum where word words
    shift
    for where in cpu "$device"; do
        words=()
        for word in "$@"; do words+=("${word/#FILE/$work/out}"); done
        rm -f "$work/out"
        if ! "$quern" "${words[@]}" --device "$where" >"$work/text" 2>"$work/log"; then
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
    local model
    for name in test_backends_devices test_backends_cuda test_runtime_devices test_runtime_record test_runtime_cuda; do
        program $name
    done
    for model in tests/data/mini/*/config.json tests/data/k256/*/*.gguf models/*.gguf "${more[@]}"; do
        equal_logits "${model%/config.json}"
        echo "logits of ${model%/config.json}: $failed of $((passed + failed)) failed so far"
    done
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
    "$quern" bench "$@" --device "$device" 2>&1 || fail "bench: $what"
}

speed() {
    local model=${more[0]:-models/quern-mini-Q8_0.gguf} long=2048 depth=4096
    [ ${#more[@]} -gt 0 ] || long=1024 depth=1024 # the bundled model has a context of 2048
    bench "decode and prefill, nothing cached" "$model" -p $long -n 64 -d 0
    bench "decode, $depth cached" "$model" -p 512 -n 64 -d $depth
    bench "128 sequences" "$model" -p 512 -n 32 -b 128
}

"$quern" devices || exit 2
if ! "$quern" logits models/quern-draft-Q8_0.gguf --ids 1,2 --top 1 --device "$device" >"$work/text" 2>"$work/log"; then
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
