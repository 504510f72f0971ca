#!/bin/sh
# Starts this machine's Python {python} with the packages beside this file.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
for python in "$PYSPARK_PYTHON" python{python} python3 python; do
    [ -n "$python" ] && [ "$python" != "$0" ] || continue
    found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
    [ "$found" = "{python}" ] || continue
    PYTHONPATH="$here/{packages}${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$@"
done
echo "tidemark: no Python {python} on $(uname -n), neither \$PYSPARK_PYTHON ($PYSPARK_PYTHON) nor on the path:" \
    "install it, or run tidemark provision --executors with the installed minor version" >&2
exit 1
