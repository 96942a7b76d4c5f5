# Source this on the GPU machine:   . unbundle.sh BUNDLE_DIR [SITE_DIR]
#
# Unpacks the archives of bundle.sh once into SITE_DIR (default: site/ in BUNDLE_DIR) and puts them first on PYTHONPATH, so
# that `python3 -m harness ...` runs from a checkout with the torch that is installed there. Parts (*.tar.xz.00, ...) are
# joined. Archives that are absent are left out: kernel work needs no fa4, say. setup.sh makes an environment with it.
_bundle=$(cd "${1:?usage: . unbundle.sh BUNDLE_DIR [SITE_DIR]}" && pwd) || return 1
_site=${2:-$_bundle/site}
mkdir -p "$_site"
for _name in base tlx fa4 report; do
    if [ ! -e "$_site/.$_name" ] && ls "$_bundle/$_name".tar.xz* >/dev/null 2>&1; then
        if ! _why=$(cat "$_bundle/$_name".tar.xz* | tar -C "$_site" -xJf - 2>&1); then
            echo "error: $_bundle/$_name.tar.xz: can't be unpacked (${_why%%$'\n'*}); was all of it copied?" >&2
            return 1
        fi
        touch "$_site/.$_name"
    fi
done
export PYTHONPATH="$_site:$_site/nvidia_cutlass_dsl/dsl_packages:$_site/nvidia_cutlass_dsl/python_packages${PYTHONPATH:+:$PYTHONPATH}"
# The bundled Triton comes without ptxas: the CUDA toolkit's is used.
TRITON_PTXAS_PATH=${TRITON_PTXAS_PATH:-$(command -v ptxas || echo /usr/local/cuda/bin/ptxas)}
TRITON_PTXAS_BLACKWELL_PATH=${TRITON_PTXAS_BLACKWELL_PATH:-$TRITON_PTXAS_PATH}
JUPYTER_PATH=$_site/share/jupyter${JUPYTER_PATH:+:$JUPYTER_PATH} # templates of reports
export TRITON_PTXAS_PATH TRITON_PTXAS_BLACKWELL_PATH JUPYTER_PATH
unset _bundle _site _name _why
