#!/usr/bin/env bash
# Runs the native part under sanitizers: recorder and drain under ThreadSanitizer (tests/sanitized/stress.cpp), and the contract
# tests under AddressSanitizer and UndefinedBehaviorSanitizer, with fewer examples of each property than `make test` tries.
# It builds in build/sanitized. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/sanitized
native=src/otel_recfn/native
compile=(${CXX:-c++} -std=c++17 -O1 -g1 -fno-omit-frame-pointer -Wall -Wextra -Wno-missing-field-initializers -I "$native")
mkdir -p "$folder"

stress_recorder_and_drain() {
  "${compile[@]}" -fsanitize=thread -o "$folder/stress" tests/sanitized/stress.cpp "$native"/core/*.cpp "$native"/drain/*.cpp -pthread
  echo "== recorder and drain under ThreadSanitizer"
  TSAN_OPTIONS=halt_on_error=1 "$folder/stress"
}

build_native() { # an extension in a copy of the package, which Python finds before the installed one
  local python_include suffix source objects=()
  python_include=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
  suffix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  rm -rf "$folder/package"
  mkdir -p "$folder/package"
  cp -r src/otel_recfn "$folder/package/"
  for source in build/joined/*.cpp; do
    objects+=("$folder/$(basename "$source").o")
    "${compile[@]}" -fsanitize=address,undefined -fno-sanitize-recover=undefined -fPIC -fvisibility=hidden -I "$python_include" \
      -c "$source" -o "${objects[-1]}" &
  done
  wait
  "${compile[@]}" -fsanitize=address,undefined -shared -o "$folder/package/otel_recfn/_native$suffix" "${objects[@]}"
}

test_contract() {
  echo "== the contract tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  local preload
  # Python isn't linked to the C++ library, whose exceptions the sanitizer has to find at its start.
  preload="$(${CXX:-c++} -print-file-name=libasan.so) $(${CXX:-c++} -print-file-name=libstdc++.so.6)"
  LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$folder/package" \
    .venv/bin/python -m pytest -q -p no:cacheprovider -m "not torch" --hypothesis-profile brief "$@" tests/contract
}

stress_recorder_and_drain
build_native
test_contract "$@"
