#!/usr/bin/env bash
# Prints a working CPython of the version asked for (interpreter.sh 3.12), or nothing: on PATH, or kept by pyenv.
set -eu
version=$1

works() {
    "$1" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1] or sys.implementation.name != "cpython")' \
        "$version" >/dev/null 2>&1
}

candidates=("$(command -v "python$version" || true)")
if command -v pyenv >/dev/null; then # its python3.x on PATH answers only for versions that are switched on
    candidates+=("$(pyenv root)"/versions/"$version".*/bin/"python$version")
fi
for candidate in "${candidates[@]}"; do
    if [ -n "$candidate" ] && works "$candidate"; then
        echo "$candidate"
        exit
    fi
done
