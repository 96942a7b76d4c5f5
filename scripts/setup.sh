#!/usr/bin/env bash
# Makes the virtual environment VENV (default .venv) for this machine: setup.sh VENV cpu|gpu [BUNDLE_DIR]
#
# Does nothing where the same set-up has already finished. PYTHON names the interpreter (3.10 to 3.13).
# The CPU build of torch is taken where an index offers it (set PIP_EXTRA_INDEX_URL to PyTorch's CPU index);
# otherwise the default build is, which is larger and works too.
#
# With BUNDLE_DIR nothing is installed: the environment is of the packages in BUNDLE_DIR (see bundle.sh), and of PYTHON's own
# (torch, numpy, pandas, scipy, matplotlib) where the bundle has none. It is then always made anew.
set -euo pipefail
given=${3:-}
bundle=$([ -z "$given" ] || { cd "$given" 2>/dev/null && pwd; } || true)
cd "$(dirname "$0")/.."
venv=${1:?usage: setup.sh VENV cpu|gpu [BUNDLE_DIR]}
flavour=${2:?usage: setup.sh VENV cpu|gpu [BUNDLE_DIR]}
python=${PYTHON:-python3}
torch_cpu=2.13.0

fail() {
    echo "error: $1" >&2
    exit 2
}

case "$flavour" in
    cpu | gpu) ;;
    *) fail "FLAVOUR=$flavour: allowed are cpu and gpu" ;;
esac

"$python" - <<'CHECK' || exit 2
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"error: Python {sys.version.split()[0]}: 3.10 to 3.13 is needed; set PYTHON=python3.12, say")
CHECK

state=$(cat pyproject.toml requirements/*.txt scripts/setup.sh | sha256sum | cut -c1-12)
stamp=$venv/.ready-$flavour-$state
of_bundle=$venv/.bundle # in an environment of a bundle: where that was

demand_bundle() { # that there is one, for this Python
    local name version
    [ -n "$bundle" ] || fail "BUNDLE=$given: no such directory"
    for name in base.tar.xz tlx.tar.xz python; do
        ls "$bundle/$name"* >/dev/null 2>&1 || fail "BUNDLE=$given: no $name there; where there is a network: make bundle"
    done
    version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
    [ "$version" = "$(cat "$bundle/python")" ] ||
        fail "BUNDLE=$given: is for Python $(cat "$bundle/python"), $python is $version; make bundle TARGET_PYTHON=$version"
}

missing() { # missing PYTHON MODULE...: the modules that can't be imported, each with why
    "$1" - "${@:2}" <<'IMPORT'
import importlib, sys
sys.path = [path for path in sys.path if path] # not from here, but from where it will be found anywhere
why = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        why.append(f"{name} ({' '.join(str(error).split())})")
print("; ".join(why))
IMPORT
}

unbundle() { # the whole environment, without network
    local why site own tools name tool
    why=$(missing "$python" torch numpy pandas scipy matplotlib)
    [ -z "$why" ] || fail "PYTHON=$python: can't import what it must have: $why"
    if [ -e "$venv" ] && [ ! -e "$of_bundle" ]; then
        fail "VENV=$venv: is there and not of a bundle; remove it, or choose another VENV"
    fi
    own=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    [[ $(realpath "$own") != "$(realpath -m "$venv")"/* ]] ||
        fail "PYTHON=$python: is that of VENV=$venv, which is made anew; deactivate it, or name another PYTHON"
    rm -rf "$venv"
    "$python" -m venv --without-pip --system-site-packages "$venv"
    echo "$bundle" >"$of_bundle"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    tools=$site/triton/backends/nvidia/bin
    mkdir -p "$tools"
    ( # what the environment finds beside its own packages: nested ones, this checkout, PYTHON's own
        PYTHONPATH=
        . scripts/unbundle.sh "$bundle" "$site" || exit 2
        tr : '\n' <<<"$PYTHONPATH" | tail -n +2
        pwd
        echo "import site; site.addsitedir('$own')" # PYTHON may be of an environment, with .pth files too
        for name in ptxas ptxas-blackwell; do # the CUDA toolkit's, or that of the Triton beside PYTHON's torch
            for tool in "$TRITON_PTXAS_PATH" "$own/triton/backends/nvidia/bin/$name"; do
                [ ! -x "$tool" ] || { ln -s "$tool" "$tools/$name" && break; }
            done
        done
    ) >"$venv/harness.pth"
    mv "$venv/harness.pth" "$site/"
    [ -e "$tools/ptxas" ] || echo "note: no ptxas on the PATH or in /usr/local/cuda/bin: Triton can't compile for a GPU" >&2
    [ ! -d "$site/share/jupyter" ] || ln -s "$site/share" "$venv/share" # templates of reports
    cat >"$venv/bin/harness" <<SCRIPT
#!/bin/sh
'''exec' "\$(dirname "\$0")/python" "\$0" "\$@"
' '''
from harness.cli import main

main()
SCRIPT
    chmod +x "$venv/bin/harness"
    why=$(missing "$venv/bin/python" torch triton pydantic typer harness)
    [ -z "$why" ] || fail "BUNDLE=$given: unpacked, but can't import: $why"
}

if [ -n "$given" ]; then
    demand_bundle
    echo "set-up: $flavour environment in $venv, of $given"
    unbundle
    touch "$venv/.ready-cpu-$state" "$venv/.ready-gpu-$state" # it is the same
    exit
fi

[ -e "$stamp" ] && exit 0
[ ! -e "$of_bundle" ] ||
    fail "VENV=$venv: is unfinished, or older than what the checkout needs; make unbundle BUNDLE=$(cat "$of_bundle")"

echo "set-up: $flavour environment in $venv (once; minutes)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if [ "$flavour" = gpu ]; then
    pip install -q --pre -r requirements/gpu.txt
    pip uninstall -q -y triton >/dev/null 2>&1 || true # fbtriton owns the same folder
    pip install -q --no-deps --force-reinstall -r requirements/cpu.txt
elif ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    pip install -q "torch==$torch_cpu+cpu" 2>/dev/null || pip install -q "torch==$torch_cpu"
fi
if [ "$flavour" = cpu ]; then
    pip uninstall -q -y triton >/dev/null 2>&1 || true
    pip install -q --no-deps -r requirements/cpu.txt
fi
pip install -q -e '.[dev]'
rm -f "$venv"/.ready-*
touch "$stamp"
