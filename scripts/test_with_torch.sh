#!/usr/bin/env bash
# Runs the tests that need PyTorch against another one than `make test` does: [PYTHON=python3.15] test_with_torch.sh 2.4.1
# In a .venv-torch-VERSION of its own; from PyPI on Linux that is a CUDA build of several GB. Arguments after it go to pytest.
set -euo pipefail
version=$1
venv=.venv-torch-$version
shift
scripts/venv_with_torch.sh "$venv" "${PYTHON:-python3}" "torch==$version"
scripts/install.sh "$venv" torch,examples,test
unset PYTHONDONTWRITEBYTECODE
"$venv/bin/python" -m pytest -q -m torch "$@"
