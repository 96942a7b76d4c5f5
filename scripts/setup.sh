#!/usr/bin/env bash
# Makes the virtual environment VENV (default .venv) for this machine: setup.sh VENV cpu|gpu
#
# Does nothing where the same set-up has already finished. PYTHON names the interpreter (3.10 to 3.13).
# The CPU build of torch is taken where an index offers it (set PIP_EXTRA_INDEX_URL to PyTorch's CPU index);
# otherwise the default build is, which is larger and works too.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: setup.sh VENV cpu|gpu}
flavour=${2:?usage: setup.sh VENV cpu|gpu}
python=${PYTHON:-python3}
torch_cpu=2.13.0

case "$flavour" in
    cpu | gpu) ;;
    *) echo "error: FLAVOUR=$flavour: allowed are cpu and gpu" >&2 ; exit 2 ;;
esac

"$python" - <<'CHECK' || exit 2
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"error: Python {sys.version.split()[0]}: 3.10 to 3.13 is needed; set PYTHON=python3.12, say")
CHECK

stamp="$venv/.ready-$flavour-$(cat pyproject.toml requirements/*.txt scripts/setup.sh | sha256sum | cut -c1-12)"
[ -e "$stamp" ] && exit 0

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
