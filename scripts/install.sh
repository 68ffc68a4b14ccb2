#!/usr/bin/env bash
# Installs this tree into a virtual environment that has setuptools: install.sh VENV EXTRAS
# A real install and no link to src, so that what the tests see is what a user gets, native part included.
set -euo pipefail
venv=$1 extras=$2

# setuptools keeps what it built in build/ and compiles only after a change; a module that was deleted would stay there too.
[ ! -d build ] || find build -name '*.py' -delete
"$venv/bin/python" -m pip install -q --no-build-isolation ".[$extras]"
