#!/usr/bin/env bash
# Makes a named environment, in which a backend's worker runs: environment.sh NAME [BUNDLE_DIR]
#
# NAME is a file of requirements/environments without its .txt, such as fa4@4.0.0b15; configs then say `fa4@4.0.0b15`.
# With network: a virtual environment with torch as in requirements/gpu.txt, fbtriton and the locked packages. With
# BUNDLE_DIR: the packages of BUNDLE_DIR/NAME.tar.xz* (see bundle.sh), which the harness's own interpreter then uses.
# HARNESS_ENVIRONMENTS (default .environments) is the folder of all environments; PYTHON as in setup.sh.
set -euo pipefail
name=${1:?usage: environment.sh NAME [BUNDLE_DIR]}
if [ -n "${2:-}" ] && [ ! -d "$2" ]; then
    echo "error: BUNDLE=$2: no such directory" >&2
    exit 2
fi
bundle=${2:+$(cd "$2" && pwd)}
cd "$(dirname "$0")/.."
lock=requirements/environments/$name.txt
if [[ $name == */* || ! -e "$lock" ]]; then
    echo "error: NAME=$name: no such locked set; allowed: $(cd requirements/environments && ls | sed 's/\.txt$//' | paste -sd' ')" >&2
    exit 2
fi
place=${HARNESS_ENVIRONMENTS:-.environments}/$name
work=$place.part # renamed when complete
rm -rf "$work"
mkdir -p "$work"
if [ -n "$bundle" ]; then
    if ! ls "$bundle/$name".tar.xz* >/dev/null 2>&1; then
        echo "error: $bundle: no $name.tar.xz there; make it with: make bundle NAME=$name" >&2
        rm -rf "$work"
        exit 2
    fi
    cat "$bundle/$name".tar.xz* | tar -C "$work" -xJf -
    rm -rf "$place"
    mv "$work" "$place"
else
    rm -rf "$work" "$place" # a virtual environment can't be moved
    "${PYTHON:-python3}" -m venv "$place"
    pip() { "$place/bin/python" -m pip --disable-pip-version-check "$@"; }
    trap 'rm -rf "$place"' ERR
    pip install -q "$(grep '^torch==' requirements/gpu.txt)"
    pip install -q .
    pip uninstall -q -y triton jagged-attention-bench >/dev/null 2>&1 || true # the worker imports the checkout's
    pip install -q --no-deps -r requirements/cpu.txt -r "$lock"
fi
echo "$name: ready"
