#!/usr/bin/env bash
# Installs this tree into a virtual environment that has setuptools: install.sh VENV EXTRAS [VENV_WITH_PIP]
# A real install and no link to src, so that what the tests see is what a user gets, native part included.
set -euo pipefail
venv=$1 extras=$2 with_pip=${3:-$1}

# setuptools keeps what it built in build/ and compiles only after a change; a source file that was deleted would stay there too.
[ ! -d build ] || find build \( -name '*.py' -o -name '*.hpp' -o -name '*.cpp' \) -delete
# Others' modules are compiled to bytecode as they are imported, which most of them never are; what tests import most is, below.
"$with_pip/bin/python" -m pip --python "$venv/bin/python" install -q --no-compile --no-build-isolation ".[$extras]"
unset PYTHONDONTWRITEBYTECODE
"$venv/bin/python" -m compileall -q "$venv"/lib/python3.*/site-packages/otel_recfn
"$venv/bin/python" - <<'END'
import contextlib, importlib

exporters = ["opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "opentelemetry.exporter.otlp.proto.http.trace_exporter"]
for name in ["torch", "torch._dynamo", "otel_recfn.profiling", "opentelemetry.sdk.trace", *exporters, "pytest", "hypothesis"]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
END
