# The program behind `--` and its arguments, and the options of a mount.
_directfs_words() {
    local at
    case ${COMP_WORDS[1]} in
        run | profile)
            for ((at = 2; at < COMP_CWORD; at++)); do
                [[ ${COMP_WORDS[at]} == -- ]] || continue
                COMPREPLY=()
                if declare -F _comp_command_offset >/dev/null; then
                    _comp_command_offset $((at + 1))
                elif declare -F _command_offset >/dev/null; then
                    _command_offset $((at + 1))
                elif ((COMP_CWORD == at + 1)); then
                    COMPREPLY=($(compgen -c -- "$2"))
                fi
                return
            done
            ;;
        mount)
            if [[ $3 == -o ]]; then
                compopt -o nospace 2>/dev/null
                COMPREPLY=($(compgen -P "${2%"${2##*,}"}" -W "MOUNT_OPTIONS" -- "${2##*,}"))
                return
            fi
            ;;
    esac
    _directfs "$@"
}
complete -F _directfs_words -o bashdefault -o default directfs
