# Completion of train, play, list-tasks and mjlab-dist in zsh, also after "uv run".

# _mjlab_dist_ask PROGRAM: complete with the suggestions of PROGRAM, or with file names if PROGRAM fails.
_mjlab_dist_ask() {
    local lines line value entry
    local -a groups others
    if ! lines=$("$1" completion -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null); then
        compset -P '--*='
        _files
        return
    fi
    for line in ${(f)lines}; do
        value=${line%%$'\t'*}
        entry=${value//:/\\:}${${line#*$'\t'}:+:${line#*$'\t'}}
        if [[ $value == *. ]]; then groups+=("$entry"); else others+=("$entry"); fi
    done
    _describe argument others -- groups -S ''
}

# Run mjlab-dist from the directory of the typed command. Never run the typed command: it may belong to another package.
_mjlab_dist() {
    local program=${commands[$words[1]]:-${~words[1]}}
    _mjlab_dist_ask "${program:h}/mjlab-dist"
}

_mjlab_dist_uv() {
    local directory=$PWD
    if ((CURRENT > 3)) && [[ "$words[2] $words[3]" =~ '^run (train|play|list-tasks|mjlab-dist)$' ]]; then
        until [[ -z $directory || -x $directory/.venv/bin/mjlab-dist ]]; do
            directory=${directory%/*}
        done
        _mjlab_dist_ask "$directory/.venv/bin/mjlab-dist"
    elif (($+functions[_uv])); then
        _uv "$@"
    else
        _default
    fi
}

(($+functions[compdef])) || { autoload -Uz compinit && compinit; }
compdef _mjlab_dist train play list-tasks mjlab-dist
compdef _mjlab_dist_uv uv
