#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the wheels beside this script into a folder of their own and runs everything on the GPU of this machine.
# Every part runs, whatever the parts before it said; the exit code tells whether all of them passed.
#
#   OUT=folder        where the logs go (default ./out)
#   PYTHON=python3    the interpreter; its version must be the one that the wheels were built for
#   PARTS="..."       which parts to run (default: suite example consumers exchange allocators benchmarks)
#   ARGS="..."        given to pytest
#   PROCESSES=12      that share the tests which can share a GPU
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
out=${OUT:-$here/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
site=$(mktemp -d)
released=$(mktemp -d)
trap 'rm -rf "$site" "$released"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

install() {
    local target=$1
    shift
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --target "$target" "$@"
}
install "$site" "$here"/wheels/*.whl || exit 2
# The release that is timed beside this package, with the same bindings. numpy, which it needs, is the machine's.
install "$released" "$here"/released/*.whl "$here"/wheels/cuda_bindings-* "$here"/wheels/cuda_pathfinder-* || exit 2
export PYTHONPATH="$site"
cd "$here" || exit 2

machine() {
    date -u '+%Y-%m-%d %H:%M UTC'
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    "$python" - <<'CODE'
import importlib.metadata as m, platform
print("Python", platform.python_version())
for name in ("cuda-core", "cuda-bindings", "cuda-driver-sim"):
    print(name, m.version(name))
import cuda.core
print("cuda.core from the bundle:", cuda.core.__file__.startswith(__import__("os").environ["PYTHONPATH"]))
CODE
}

# First what can share a GPU, in many processes; then what looks at how much memory is free, in one for each GPU. Where there
# are several GPUs, at last, in one process that sees all of them, what needs two.
suite() {
    # Only the plugins that the tests ask for: others that the machine has may not bear these.
    export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
    local pytest=("$python" -m pytest -p xdist -p _hypothesis_pytestplugin -p no:cacheprovider
        --driver=gpu -o faulthandler_timeout=100)
    local code=0 alone
    "${pytest[@]}" --shared-gpu -n "${PROCESSES:-12}" --dist worksteal --durations=10 ${ARGS:-} cuda_core/tests || code=$?
    alone=$(grep -rlE 'free_memory|mark\.alone' cuda_core/tests --include='test_*.py')
    "${pytest[@]}" $alone -n auto --dist worksteal --durations=10 ${ARGS:-} || code=$?
    [ "$(nvidia-smi --list-gpus | wc -l)" -gt 1 ] || return $code
    "${pytest[@]}" -m two_devices ${ARGS:-} cuda_core/tests && return $code
}
example() { "$python" examples/grow_buffer.py --driver gpu; }
consumers() { "$python" check_consumers.py; }
exchange() { "$python" check_exchange.py; }
allocators() {
    local failures=0 library kind
    for library in cupy torch; do
        for kind in pool virtual managed; do
            "$python" "examples/${library}_allocator.py" --resource "$kind" || failures=$((failures + 1))
        done
    done
    [ "$failures" -eq 0 ]
}
benchmarks() {
    "$python" benchmarks/run.py --driver gpu --json "$out/benchmarks.json" --released "$released"
}

failed=
for part in machine ${PARTS:-suite example consumers exchange allocators benchmarks}; do
    printf '\n== %s\n' "$part"
    started=$SECONDS
    "$part" 2>&1 | tee "$out/$part.log"
    code=${PIPESTATUS[0]}
    printf '== %s: exit code %d, %d s\n' "$part" "$code" "$((SECONDS - started))" | tee -a "$out/$part.log"
    [ "$code" -eq 0 ] || failed="$failed $part"
done
if [ -z "$failed" ]; then outcome="all passed"; else outcome="failed:$failed"; fi
printf "\n%s\n" "$outcome" | tee "$out/outcome.log"
[ -z "$failed" ]
