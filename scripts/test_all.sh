#!/usr/bin/env bash
# The whole suite in two runs at once, of about the same length: programs with PyTorch; and beside them all else, then the other CPythons.
# Arguments go to pytest on the main interpreter.
set -uo pipefail
set -m # a run beside the first one hears of Ctrl-C too
beside_said=$(mktemp)
trap 'kill -- "-$beside" 2>/dev/null; rm -f "$beside_said"' EXIT
trap 'exit 130' INT TERM

{ .venv/bin/python -m pytest "$@" tests/contract tests/unit && scripts/test_without_torch.sh; } >"$beside_said" 2>&1 </dev/null &
beside=$!
.venv/bin/python -m pytest "$@" tests/integration
programs=$?
[ "$programs" = 2 ] && exit 2 # interrupted: the other run is ended too
wait "$beside"
others=$?
echo "== recorders and units, then the other CPythons"
cat "$beside_said"
exit $((programs || others))
