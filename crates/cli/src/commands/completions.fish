# The program behind `--`, and its arguments.
complete -c directfs -n "contains -- -- (commandline -opc)" -xa "(complete -C (string replace -r '^.*? -- ' '' -- (commandline -cp)))"
