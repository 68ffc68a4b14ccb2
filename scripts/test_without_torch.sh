#!/usr/bin/env bash
# Runs the tests that need no PyTorch, and whose subject may depend on the interpreter, on the other supported CPythons of this
# machine, at once, each in a .venv-VERSION of its own.
set -euo pipefail
main=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
said=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$said"' EXIT

versions=()
oldest=
newest=
for version in 3.10 3.11 3.12 3.13 3.14 3.15; do
    [ "$version" = "$main" ] && continue
    python=$(scripts/interpreter.sh "$version")
    if [ -z "$python" ]; then
        echo "== CPython $version: not on this machine, skipped"
        continue
    fi
    venv=.venv-$version
    [ -x "$venv/bin/python" ] || "$python" -m venv --without-pip "$venv" # the main one's pip serves all
    if [ ! -e "$venv/.setuptools" ]; then
        .venv/bin/python -m pip --python "$venv/bin/python" install -q --no-compile "setuptools>=77"
        touch "$venv/.setuptools"
    fi
    scripts/install.sh "$venv" test .venv # one after the other: all build in one folder
    versions+=("$version")
    oldest=${oldest:-$version}
    newest=$version
done

# What differs between versions of CPython is native, and has contract tests. Python's own library and syntax change in one
# direction, so that the units need the oldest and the newest only.
tests=()
for version in ${versions[@]+"${versions[@]}"}; do
    folders=()
    if [ "$version" != "$oldest" ] && [ "$version" != "$newest" ]; then
        folders=(tests/contract)
    fi
    # Fewer examples of each property: the main interpreter tries them in full.
    # Asserts as they stand, with local variables where one fails: rewriting them takes each as long as many tests.
    ".venv-$version/bin/python" -m pytest -q -m "not torch and not gpu and not one_python" \
        --assert=plain --showlocals --hypothesis-profile brief "$@" ${folders[@]+"${folders[@]}"} >"$said/$version" 2>&1 </dev/null &
    tests+=($!)
done
failed=0
for number in ${tests[@]+"${!tests[@]}"}; do
    wait "${tests[$number]}" || failed=1
    echo "== CPython ${versions[$number]}, without PyTorch"
    cat "$said/${versions[$number]}"
done
exit $failed
