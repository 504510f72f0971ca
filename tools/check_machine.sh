#!/bin/sh
# What must be on the machine beforehand: Python 3.11+, Java 17+, the official Pub/Sub emulator. Says how to get
# what is missing. Usage: check_machine.sh PYTHON
python=${1:-python3}
missing=0

say() {
    printf 'tidemark needs %s\n' "$1" >&2
    missing=1
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "Python 3.11 or newer; '$python' is not: install it, or name another with make PYTHON=python3.12"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    say "Python's venv module (Debian: apt-get install python3-venv)"
fi

java=java
[ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java=$JAVA_HOME/bin/java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
if [ -z "$version" ] || [ "$version" -lt 17 ]; then
    say "Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), on the PATH or in JAVA_HOME"
fi

found=
gcloud=$(command -v gcloud 2>/dev/null)
for sdk in ${gcloud:+"$(dirname "$(dirname "$(readlink -f "$gcloud")")")"} \
    /usr/lib/google-cloud-sdk /usr/share/google-cloud-sdk /usr/local/google-cloud-sdk /opt/google-cloud-sdk \
    /opt/homebrew/share/google-cloud-sdk /usr/local/share/google-cloud-sdk /snap/google-cloud-cli/current \
    "$HOME/google-cloud-sdk"; do
    for jar in "$sdk"/platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar; do
        [ -e "$jar" ] && found=$jar
    done
done
if [ -z "$found" ]; then
    say "the official Pub/Sub emulator, which comes with the Google Cloud CLI: gcloud components install pubsub-emulator, or Debian's google-cloud-cli-pubsub-emulator"
fi

exit $missing
