#!/usr/bin/env bash
# Packs this project's dependencies for a GPU machine that has torch but no network: bundle.sh OUT_DIR
#
#   OUT_DIR/base.tar.xz   the harness's own dependencies that are pure Python or small (pydantic, ruamel.yaml, typer, rich, ...)
#   OUT_DIR/tlx.tar.xz    fbtriton (Triton with TLX)
#   OUT_DIR/fa4.tar.xz    flash-attn-4, nvidia-cutlass-dsl (CUDA 13), nvidia-cudnn-frontend
#   OUT_DIR/unbundle.sh   to be sourced there
#
# Expected on the target, beside torch >= 2.11 for CUDA 13: numpy, pandas, scipy, matplotlib.
# TARGET_PYTHON (default 3.12) is the target's CPython; x86-64 Linux. PART=46M splits each archive into parts of that
# size (base.tar.xz.00, ...), for channels with a size limit. FA4, CUTLASS_DSL, QUACK, TVM_FFI and CUDNN_FE choose other versions.
set -euo pipefail
out=$(mkdir -p "${1:?usage: bundle.sh OUT_DIR}" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
target=${TARGET_PYTHON:-3.12}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pinned() { sed -n "s/^\($1\)\(\[.*\]\)\?\(==[^ ]*\).*/\1\3/p" requirements/*.txt; }

platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 17 24 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done

fetch() { # fetch ARCHIVE REQUIREMENT...: unpack wheels for the target, without their dependencies
    local dir=$work/$1 wheel
    shift
    mkdir -p "$dir.whl" "$dir"
    "$python" -m pip download -q --disable-pip-version-check --no-deps --pre --only-binary=:all: \
        --python-version "$target" --implementation cp "${platforms[@]}" -d "$dir.whl" "$@"
    for wheel in "$dir.whl"/*.whl; do "$python" -m zipfile -e "$wheel" "$dir"; done
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

fetch base "pydantic==2.12.5" "pydantic-core==2.41.5" annotated-types typing-inspection typing-extensions ruamel.yaml \
    typer click shellingham rich markdown-it-py mdurl pygments nvidia-ml-py psutil
pack base

fetch tlx "$(pinned fbtriton)"
( # what no kernel needs at run time: profiler libraries, test plugins, a ptxas that every CUDA toolkit has
    cd "$work/tlx/triton"
    rm -rf _C/libproton.so plugins FileCheck backends/nvidia/lib/cupti* backends/nvidia/bin/ptxas* instrumentation/*Test*
    strip --strip-unneeded _C/libtriton.so
)
pack tlx

dsl=${CUTLASS_DSL:-4.8.1}
fetch fa4 "${FA4:-$(pinned flash-attn-4)}" "nvidia-cutlass-dsl==$dsl" "nvidia-cutlass-dsl-libs-base==$dsl" \
    "nvidia-cutlass-dsl-libs-cu13==$dsl" "${QUACK:-quack-kernels==0.6.5}" "${TVM_FFI:-apache-tvm-ffi<0.2}" \
    torch-c-dlpack-ext einops "${CUDNN_FE:-$(pinned nvidia-cudnn-frontend)}"
[[ $dsl < 4.6 ]] || fetch fa4 "nvidia-cutlass-dsl-libs-core==$dsl"
pack fa4

cp scripts/unbundle.sh "$out/"
ls -l "$out"
