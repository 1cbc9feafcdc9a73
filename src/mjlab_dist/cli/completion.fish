# Completion of train, play, list-tasks and mjlab-dist in fish, also after "uv run".

# Store the suggestions of mjlab-dist for the typed words. If mjlab-dist fails, fail too: fish then completes file names.
# Run mjlab-dist from the directory of the typed command. Never run the typed command: it may belong to another package.
function __mjlab_dist_ask
    set -l words (commandline -opc) (commandline -ct)
    set -l program (command -s -- $words[1] | string replace -r '[^/]*$' mjlab-dist)
    if test "$words[1]" = uv
        string match -qr '^run (train|play|list-tasks|mjlab-dist)$' -- "$words[2..3]"; and set -q words[4]; or return 1
        set -l directory $PWD
        while test -n "$directory" -a ! -x $directory/.venv/bin/mjlab-dist
            set directory (string replace -r '/[^/]*$' '' -- $directory)
        end
        set program $directory/.venv/bin/mjlab-dist
    end
    test -x "$program"; and set -g __mjlab_dist_suggestions ($program completion -- $words 2>/dev/null)
end

for command in train play list-tasks mjlab-dist uv
    complete -c $command -n __mjlab_dist_ask -f -a '$__mjlab_dist_suggestions'
end
