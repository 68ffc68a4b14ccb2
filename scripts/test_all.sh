#!/usr/bin/env bash
# The whole suite at once, since tests wait now and then: programs with PyTorch, all else, and, where the processors have time left,
# the part without PyTorch on the other CPythons.
# Arguments go to pytest on the main interpreter.
set -uo pipefail
set -m # a run beside the first one hears of Ctrl-C too
said=$(mktemp -d)
trap 'kill -- "-$parts" "-$others" 2>/dev/null; rm -rf "$said"' EXIT
trap 'exit 130' INT TERM

.venv/bin/python -m pytest "$@" tests/contract tests/unit >"$said/parts" 2>&1 </dev/null &
parts=$!
nice -n 5 scripts/test_without_torch.sh >"$said/others" 2>&1 </dev/null &
others=$!
.venv/bin/python -m pytest "$@" tests/integration tests/laws
failed=$?
[ "$failed" = 2 ] && exit 2 # interrupted: the other runs are ended too
wait "$parts" || failed=1
echo "== recorders and units"
cat "$said/parts"
wait "$others" || failed=1
cat "$said/others"
exit $((failed != 0))
