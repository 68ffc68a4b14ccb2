#!/usr/bin/env bash
# The whole suite in two runs at once, of about the same length: programs with PyTorch, and beside them all else; each then goes on
# with some of the other CPythons.
# Arguments go to pytest on the main interpreter.
set -uo pipefail
set -m # a run beside the first one hears of Ctrl-C too
beside_said=$(mktemp)
trap 'kill -- "-$beside" 2>/dev/null; rm -f "$beside_said"' EXIT
trap 'exit 130' INT TERM

{
    .venv/bin/python -m pytest "$@" tests/contract tests/unit && CPYTHONS="3.10 3.12" scripts/test_without_torch.sh
} >"$beside_said" 2>&1 </dev/null &
beside=$!
.venv/bin/python -m pytest "$@" tests/integration
programs=$?
[ "$programs" = 2 ] && exit 2 # interrupted: the other run is ended too
CPYTHONS="3.11 3.13" scripts/test_without_torch.sh || programs=1
wait "$beside"
others=$?
echo "== recorders and units, then CPython 3.10 and 3.12"
cat "$beside_said"
exit $((programs || others))
