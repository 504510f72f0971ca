#!/bin/sh
# Install the project (editable, or from a wheel) with these extras. Versions come from constraints.txt, or from the
# file $CONSTRAINTS. Usage: install.sh PYTHON EXTRAS [WHEEL]
#
# uv takes half of pip's time, and only seconds if its cache has all versions. So it first tries offline: if it asks the
# index, it rebuilds packages that it built from source. uv does not read pip's configuration. So pip installs if it is
# configured with another index, or if uv cannot be installed or fails.
python=$1
extras=$2
constraints=${CONSTRAINTS:-constraints.txt}
if [ -n "$3" ]; then
    set -- "$3[$extras]"
else
    set -- --editable ".[$extras]"
fi

run_pip() {
    "$python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" "$@"
}

run_uv() {
    "$python" -m uv pip install --quiet --python "$python" --constraint "$constraints" "$@"
}

if ! "$python" -m pip config list | grep -Eq 'index-url|no-index' && run_pip uv 2>/dev/null; then
    run_uv --offline "$@" 2>/dev/null && exit
    run_uv "$@" && exit
    echo 'uv failed; pip installs instead' >&2
fi
run_pip "$@"
