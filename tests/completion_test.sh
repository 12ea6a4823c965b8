#!/bin/sh
# What shells complete, each by its own means: completion_test.sh SOURCE BUILD. A shell that is not here is skipped by
# name; bash always is.
set -eu
build=$2
pages=$build/pages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/folder" "$work/two words"
touch "$work/a.gguf" "$work/b.txt" "$work/c d.gguf"
models=$work/.local/share/quern/models/somebody
mkdir -p "$models/Quern-mini-GGUF" "$models/Other-GGUF"
cp "$1/models/quern-draft-Q8_0.gguf" "$models/Quern-mini-GGUF/mini-Q8_0.gguf"
cp "$1/models/quern-draft-Q8_0.gguf" "$models/Other-GGUF/other-Q4_K_M.gguf"
cd "$work"
export HOME="$work" LC_ALL=C.UTF-8 PATH="$build:$PATH"
unset QUERN_MODELS XDG_DATA_HOME HF_HOME HF_HUB_CACHE LLAMA_CACHE OLLAMA_MODELS

# Words that end in what is completed, and what must come of it.
cat >cases <<'CASES'
quern tokeni|tokenize
quern run --numerics |balanced exact fast tensor
quern run --numerics f|fast
quern run --gpu-layers |all auto
quern serve --log-format j|json
quern run --context-s|--context-shift
quern help comp|compile completion
quern help completion |bash fish zsh
quern help manual detok|detokenize
quern convert fold|folder
quern frobnicate r|
quern run some|somebody/Other-GGUF:Q4_K_M somebody/Quern-mini-GGUF:Q8_0
quern run --draft quern|Quern-mini-GGUF:Q8_0
quern eval other|Other-GGUF:Q4_K_M
quern rm somebody/o|somebody/Other-GGUF:Q4_K_M
quern show quern-|Quern-mini-GGUF:Q8_0
CASES

# ask SHELL: reads lines of words, and prints for each the sorted candidates on one line.
ask_bash() {
    cat >ask.bash <<'ASK'
. "$1"
while IFS= read -r line; do
    COMP_WORDS=($line) COMP_LINE=$line COMP_POINT=${#line}
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _quern quern "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd ' '
done
ASK
    bash --norc --noprofile -u ask.bash "$pages/quern.bash"
}

ask_fish() {
    cat >ask.fish <<'ASK'
source $argv[1]
while read -l line
    set -l found (complete -C $line | string replace -r '\t.*' '' | string trim -r -c / | sort -u)
    echo $found
end
ASK
    fish --no-config ask.fish "$pages/quern.fish"
}

# zsh completes on a terminal alone: one of its own, where compadd tells what it is given.
ask_zsh() {
    mkdir -p functions
    cp "$pages/quern.zsh" functions/_quern
    cat >ask.zsh <<'ASK'
zmodload zsh/zpty
zpty shell zsh -f -i
tell() { zpty -w shell "$1" }
until_line() { local line; while zpty -r shell line; do [[ $line == *"$1"* ]] && return; done }
tell 'PS1= PS2=; unsetopt zle_bracketed_paste; stty -echo; fpath=('$PWD'/functions $fpath); autoload -U compinit; compinit -u -D'
tell 'zstyle ":completion:*" list-grouped no; zstyle ":completion:*" verbose no; bindkey "^I" list-told'
tell 'told() { local -a compstate_words; typeset -ga found; found=(); _main_complete; compstate[insert]=; compstate[list]=; }'
tell 'compadd() { local -a got; builtin compadd -O got "$@"; [[ "$*" == *-O* || "$*" == *-A* || "$*" == *-D* ]] || found+=($got); builtin compadd "$@" }'
tell 'list-told() { found=(); zle told-complete; print -r -- "@""<${(@ou)found}>""@"; BUFFER= }'
tell 'zle -C told-complete complete-word told; zle -N list-told; print ready''!'
until_line 'ready!'
while IFS= read -r line; do
    zpty -w -n shell "$line"$'\t'
    while zpty -r shell got; do [[ $got == *'@<'*'>@'* ]] && break; done # not what was typed above, which has quotes there
    got=${got##*@<} got=${got%%>@*}
    print -r -- "$got"
done
zpty -d shell
ASK
    timeout 60 zsh -f ask.zsh
}

for shell in bash zsh fish; do
    if ! command -v "$shell" >/dev/null 2>&1; then
        echo "skipped: $shell is not installed"
        continue
    fi
    # fish looks for what was typed anywhere in a name, and so shows whole names alone.
    owner=$([ "$shell" = fish ] && echo somebody/ || echo none)
    cut -d '|' -f 1 cases | "ask_$shell" | sed "s|$owner||g" >"got.$shell"
    cut -d '|' -f 2 cases | sed "s|$owner||g" | diff - "got.$shell" >"diff.$shell" || { echo "$shell:"; cat "diff.$shell"; exit 1; }
    # A model is also a .gguf file or a folder; other files come after, if at all.
    echo 'quern run ' | "ask_$shell" | tr -d '\\' >"models.$shell"
    for name in a.gguf 'c d.gguf' folder 'two words'; do
        grep -q "$name" "models.$shell" || { echo "$shell: no $name in: $(cat "models.$shell")"; exit 1; }
    done
    echo "$shell: $(wc -l <cases) cases"
done

# Every option and every value of a list is known to bash, as the help has them.
for command in run serve bench quantize; do
    "$build/quern" help "$command" | sed -n '/^options$/,/^$/s/^  \(-[a-z]*, \|    \)\(--[a-z0-9-]*\).*/\2/p' | sort >want
    echo "quern $command --" | ask_bash | tr ' ' '\n' | sort >got
    diff want got || { echo "bash: options of $command"; exit 1; }
done
bash --norc --noprofile -c '. "$1"; complete -p quern' - "$pages/quern.bash" | grep -q -e '-F _quern quern'
