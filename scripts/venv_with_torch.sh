#!/usr/bin/env bash
# Makes a virtual environment that has PyTorch: venv_with_torch.sh FOLDER PYTHON TORCH
# PYTHON is tried first; where PyTorch has no wheel for it, the other CPythons of this machine are. One that is there is completed.
set -euo pipefail
folder=$1 python=$2 torch=$3
here=$(dirname "$0")

has_torch() { "$folder/bin/python" -c 'import torch' 2>/dev/null; }

install() {
    echo "== $folder: $("$folder/bin/python" --version), $torch"
    # Resolving takes pip before 24.2 several times as long.
    "$folder/bin/python" -m pip install -q --no-compile "setuptools>=77" "pip>=24.2" || return
    # shellcheck disable=SC2086  # TORCH may hold options for pip
    has_torch || "$folder/bin/python" -m pip install -q --no-compile $torch
}

if [ -x "$folder/bin/python" ]; then
    install
    exit
fi
for candidate in "$python" $(for version in 3.11 3.12 3.13 3.10 3.14 3.15; do "$here/interpreter.sh" "$version"; done); do
    if "$candidate" -m venv "$folder" && install; then
        exit
    fi
    rm -rf "$folder"
done
echo "No Python here could install '$torch'. Name another: make PYTHON=/path/to/python3.12 TORCH=torch" >&2
exit 1
