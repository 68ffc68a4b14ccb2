#!/usr/bin/env bash
# The whole suite in two runs at once, of about the same length: the tests of the recorders and then the other CPythons beside the rest.
# Arguments go to pytest on the main interpreter.
set -uo pipefail
set -m # a run beside the first one hears of Ctrl-C too
beside_said=$(mktemp)
trap 'kill -- "-$beside" 2>/dev/null; rm -f "$beside_said"' EXIT
trap 'exit 130' INT TERM

{ .venv/bin/python -m pytest "$@" tests/contract && scripts/test_without_torch.sh; } >"$beside_said" 2>&1 </dev/null &
beside=$!
.venv/bin/python -m pytest "$@" tests/unit tests/integration # forks cost less before the programs of the second have been run
rest=$?
[ "$rest" = 2 ] && exit 2 # interrupted: the other run is ended too
wait "$beside"
recorders=$?
echo "== the recorders, then the other CPythons"
cat "$beside_said"
exit $((rest || recorders))
