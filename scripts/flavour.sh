#!/usr/bin/env bash
# Prints "gpu" where an NVIDIA GPU of compute capability 8.0 or newer answers, else "cpu". FLAVOUR=cpu|gpu overrides.
set -u
case "${FLAVOUR:-}" in
    cpu | gpu) echo "$FLAVOUR" ; exit 0 ;;
    "") ;;
    *) echo "error: FLAVOUR=$FLAVOUR: allowed are cpu and gpu" >&2 ; exit 2 ;;
esac
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -n | head -n 1)
case "$capability" in
    [89].* | [1-9][0-9].*) echo gpu ;;
    *) echo cpu ;;
esac
