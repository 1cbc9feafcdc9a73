# Completion of train, play, list-tasks and mjlab-dist in bash, also after "uv run".

# _mjlab_dist_ask PROGRAM WORD: complete WORD with the suggestions of PROGRAM, or with file names if PROGRAM fails.
_mjlab_dist_ask() {
    local lines line
    COMPREPLY=()
    if lines=$("$1" completion -- "${COMP_WORDS[@]:0:COMP_CWORD}" "$2" 2>/dev/null); then
        while IFS=$'\t' read -r line _; do
            [[ -n $line ]] && COMPREPLY+=("$line")
        done <<<"$lines"
    else
        compopt -o default
    fi
}

# Run mjlab-dist from the directory of the typed command. Never run the typed command: it may belong to another package.
_mjlab_dist() {
    local program
    program=$(type -P -- "$1")
    _mjlab_dist_ask "${program%/*}/mjlab-dist" "$2"
}

_mjlab_dist_uv() {
    local directory=$PWD
    if ((COMP_CWORD > 2)) && [[ "${COMP_WORDS[*]:1:2}" =~ ^run\ (train|play|list-tasks|mjlab-dist)$ ]]; then
        until [[ -z $directory || -x $directory/.venv/bin/mjlab-dist ]]; do
            directory=${directory%/*}
        done
        _mjlab_dist_ask "$directory/.venv/bin/mjlab-dist" "$2"
    elif declare -F _uv >/dev/null; then
        _uv "$@"
    else
        compopt -o default
    fi
}

complete -F _mjlab_dist train play list-tasks mjlab-dist
complete -F _mjlab_dist_uv -o nosort -o bashdefault uv
