#!/usr/bin/env bash
# Packs this project's dependencies for a GPU machine that has torch but no network: bundle.sh OUT_DIR [NAME]
#
#   OUT_DIR/base.tar.xz     the harness's own dependencies that are pure Python or small (pydantic, ruamel.yaml, typer, rich, ...)
#   OUT_DIR/tlx.tar.xz      fbtriton (Triton with TLX)
#   OUT_DIR/fa4.tar.xz      flash-attn-4, nvidia-cutlass-dsl (CUDA 13), nvidia-cudnn-frontend
#   OUT_DIR/report.tar.xz   what reports are made with (nbclient, nbconvert, ...)
#   OUT_DIR/python          the version of Python that all this is for
#   OUT_DIR/unbundle.sh     to be sourced where there is no checkout; `make unbundle` does the rest too
#
# With NAME, a locked set such as fa4@4.0.0b15, only that: OUT_DIR/NAME.tar.xz, for environment.sh.
#
# Expected on the target, beside torch >= 2.11 for CUDA 13: numpy, pandas, scipy, matplotlib.
# TARGET_PYTHON (default 3.12) is the target's CPython; x86-64 Linux. PART=46M splits each archive into parts of that
# size (base.tar.xz.00, ...), for channels with a size limit.
set -euo pipefail
out=$(mkdir -p "${1:?usage: bundle.sh OUT_DIR [NAME]}" && cd "$1" && pwd)
name=${2:-}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
target=${TARGET_PYTHON:-3.12}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pinned() { sed -n "s/^\($1\)\(\[.*\]\)\?\(==[^ ]*\).*/\1\3/p" requirements/*.txt; }

listed() { # listed KEY: the requirements in a list of pyproject.toml, one a line
    sed -n "/^$1 = \[/{:a;/\]$/!{N;ba};p}" pyproject.toml | grep -o '"[^"]*"' | tr -d '"'
}

locked() { # locked REQUIREMENT: the locked set that it belongs to
    grep -lx -- "$1" requirements/environments/*.txt
}

platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 17 24 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done

fetch() { # fetch ARCHIVE REQUIREMENT...: install wheels for the target; --no-deps leaves out what they depend on
    local dir=$work/$1
    shift
    "$python" -m pip install -q --disable-pip-version-check --no-compile --only-binary=:all: --python-version "$target" \
        --implementation cp "${platforms[@]}" --target "$dir" "$@"
    rm -rf "$dir/bin" # scripts that name this machine's Python
}

pack() { # pack ARCHIVE
    local archive=$out/$1.tar.xz
    rm -f "$archive" "$archive".??
    if [ -n "${PART:-}" ]; then
        tar -C "$work/$1" -cf - . | xz -T0 -6 | split -b "$PART" -d - "$archive."
    else
        tar -C "$work/$1" -cf - . | xz -T0 -6 >"$archive"
    fi
}

if [ -n "$name" ]; then
    if [[ $name == */* || ! -e "requirements/environments/$name.txt" ]]; then
        echo "error: NAME=$name: no such locked set; allowed: $(cd requirements/environments && ls | sed 's/\.txt$//' | paste -sd' ')" >&2
        exit 2
    fi
    fetch "$name" --no-deps --pre -r "requirements/environments/$name.txt"
    pack "$name"
    exit
fi

mapfile -t needed < <(listed dependencies | grep -vE '^(matplotlib|numpy|pandas|scipy)\b' && listed simulator)
fetch base "${needed[@]}"
pack base

fetch tlx --no-deps "$(pinned fbtriton)"
( # what no kernel needs at run time: profiler libraries, test plugins, a ptxas that every CUDA toolkit has
    cd "$work/tlx/triton"
    rm -rf _C/libproton.so plugins FileCheck backends/nvidia/lib/cupti* backends/nvidia/bin/ptxas* instrumentation/*Test*
    strip --strip-unneeded _C/libtriton.so
)
pack tlx

fetch fa4 --no-deps --pre -r "$(locked "$(pinned flash-attn-4)")" -r "$(locked "$(pinned nvidia-cudnn-frontend)")"
pack fa4

# pip takes markers to be of its own Python: the last two are needed by 3.10 alone, and by no other missed
mapfile -t needed < <(listed notebooks)
fetch report "${needed[@]}" exceptiongroup tomli
pack report

echo "$target" >"$out/python"
cp scripts/unbundle.sh "$out/"
ls -l "$out"
