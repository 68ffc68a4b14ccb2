#!/usr/bin/env bash
# Runs the tests that need no PyTorch, and whose subject may depend on the interpreter, on the other supported CPythons of this
# machine, each in a .venv-VERSION of its own.
set -euo pipefail
failed=0
main=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

for version in 3.10 3.11 3.12 3.13; do
    [ "$version" = "$main" ] && continue
    python=$(scripts/interpreter.sh "$version")
    if [ -z "$python" ]; then
        echo "== CPython $version: not on this machine, skipped"
        continue
    fi
    echo "== CPython $version, without PyTorch"
    venv=.venv-$version
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    [ -e "$venv/.setuptools" ] || { "$venv/bin/python" -m pip install -q "setuptools>=77" && touch "$venv/.setuptools"; }
    scripts/install.sh "$venv" test
    # Fewer examples of each property, and fewer places where memory fails: the main interpreter tries them in full.
    FAULT_SECONDS=2 "$venv/bin/python" -m pytest -q -m "not torch and not gpu and not one_python" --hypothesis-profile brief "$@" ||
        failed=1 # and on to the next
done
exit $failed
