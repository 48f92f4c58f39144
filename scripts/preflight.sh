#!/usr/bin/env bash
# Checks that this machine has the Python and the Java that set-up and Spark need. Downloads nothing, except that on Debian
# and Ubuntu, as root or with a sudo that asks no password, it installs what is missing from the system's own packages.
# Prints the Python to use; everything for a person goes to standard error. PYTHON and JAVA_HOME choose another one.
set -euo pipefail

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2])' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Debian's python3 has venv but not the pip that goes into one, until python3-venv is installed.
python_has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        echo "$JAVA_HOME/bin/java" # Spark looks nowhere else when it is set.
    else
        command -v java
    fi
}

java_version() {
    "$1" -version 2>&1 | sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1
}

# What is missing, as "what|Debian's package", one a line.
missing() {
    local python java version modules
    if ! python=$(find_python); then
        echo "Python 3.11 or later|python3 python3-venv"
    elif ! python_has_venv "$python"; then
        echo "the venv module of $python|python3-venv"
    fi
    java=$(find_java) || java=
    version=$([ -z "$java" ] || java_version "$java" 2>/dev/null || true)
    modules=$([ -z "$java" ] || "$java" --list-modules 2>/dev/null || true)
    if [ -z "$version" ]; then
        echo "Java 17 or later|openjdk-17-jre-headless"
    elif [ "$version" -lt 17 ]; then
        echo "Java 17 or later ($java is $version)|openjdk-17-jre-headless"
    elif [[ $modules != *jdk.incubator.vector* ]]; then
        echo "a Java with the module jdk.incubator.vector ($java has none and can't start Spark)|openjdk-17-jre-headless"
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_install() {
    command -v apt-get >/dev/null && [ -z "${JAVA_HOME:-}" ] && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

install_packages() {
    echo "Installing $* with apt-get (this machine lacks $1)." >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || true
    if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >&2; then
        return
    fi
    # Newer releases carry only a later Java.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${@/openjdk-17/openjdk-21}" >&2
}

fix_line() {
    local packages=$1
    if [ -n "${JAVA_HOME:-}" ] && [[ $packages == *openjdk* ]]; then
        echo "point JAVA_HOME (now $JAVA_HOME) to a Java 17, or unset it"
    elif command -v apt-get >/dev/null; then
        echo "sudo apt-get install -y $packages"
    elif command -v dnf >/dev/null; then
        echo "sudo dnf install -y java-17-openjdk-headless python3.11"
    elif command -v brew >/dev/null; then
        echo "brew install openjdk@17 python@3.12, and set JAVA_HOME as it tells you"
    else
        echo "install them with this machine's package manager, or set PYTHON and JAVA_HOME to where they are"
    fi
}

found=$(missing)
if [ -n "$found" ] && can_install; then
    # shellcheck disable=SC2046  # Package names are words.
    install_packages $(cut -d'|' -f2 <<<"$found") || true
    found=$(missing)
fi
if [ -n "$found" ]; then
    what=$(cut -d'|' -f1 <<<"$found" | paste -sd';' - | sed 's/;/ and /g')
    packages=$(cut -d'|' -f2 <<<"$found" | paste -sd' ' -)
    echo "Missing: $what. To fix it: $(fix_line "$packages")" >&2
    exit 1
fi
find_python
