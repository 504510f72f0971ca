#!/bin/sh
# Install the project, editable, or a wheel of it, with these extras and the versions of constraints.txt, or of the file
# $CONSTRAINTS. Usage: install.sh PYTHON EXTRAS [WHEEL]
#
# uv installs in half of pip's time, and within seconds if all of these versions are in its cache: what was built from
# source is built anew if the index is asked. It does not read pip's configuration, so pip installs where pip has an
# index of its own, and where uv cannot be installed or fails.
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
