#!/usr/bin/env bash
# Makes .local/venv with everything pinned in constraints.txt, and brings Spark's jars. Does nothing when that has been done
# from the same files. Set-ups at the same time wait for each other.
set -euo pipefail
cd "$(dirname "$0")/.."

export DAGSTER_IPS_CACHE="${DAGSTER_IPS_CACHE:-$PWD/.local/cache}"
venv=.local/venv
log=.local/setup.log
mark=$venv/made-from

python=$(scripts/preflight.sh)
mkdir -p .local
if command -v flock >/dev/null; then
    exec 9>.local/setup.lock
    flock -n 9 || { echo "Waiting for another set-up of this checkout."; flock 9; }
fi

made_from() {
    "$python" - "$PWD" pyproject.toml constraints.txt <<'PY'
import hashlib, pathlib, sys
inputs = [sys.version, sys.argv[1], *(pathlib.Path(name).read_text() for name in sys.argv[2:])]
print(hashlib.sha256("\0".join(inputs).encode()).hexdigest())
PY
}

# Runs a command with its output in the log, and says every ten seconds how far it is.
with_progress() {
    local what=$1 started=$SECONDS next=10 child
    shift
    echo "== $what" >>"$log"
    set -m # A process group of its own: an interrupt ends pip too, not just the function around it.
    "$@" >>"$log" 2>&1 9>&- </dev/null &
    child=$!
    set +m
    # shellcheck disable=SC2064  # The child of now is meant.
    trap "kill -- -$child 2>/dev/null; exit 130" INT TERM
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - started)) -ge "$next" ]; then
            echo "  $what: $((SECONDS - started)) s, $(du -sm .local 2>/dev/null | cut -f1) MB in .local, $(last_step)"
            next=$((next + 10))
        fi
    done
    trap - INT TERM
    if ! wait "$child"; then
        echo "$what failed. The last lines of $log:" >&2
        tail -n 15 "$log" >&2
        return 1
    fi
}

last_step() {
    local step
    step=$(tail -n 20 "$log" | grep -E '^(==| *(Collecting|Downloading|Building|Preparing|Installing))' | tail -n 1 |
        sed 's/^ *//; s/ (from.*//; s#https\?://[^ ]*/##' | cut -c1-50)
    case $step in "" | ==*) echo "working" ;; *) echo "$step" ;; esac
}

install_packages() {
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --progress-bar off \
        -c constraints.txt -e '.[example,dev]'
}

wanted=$(made_from)
if [ "$(cat $mark 2>/dev/null)" != "$wanted" ]; then
    echo "Downloading about 700 MB of Python packages (Spark is 455 of them) and 62 MB of jars into .local/: two to three minutes on a fast line, 1.5 GB on disk."
    rm -f "$mark"
    : >"$log"
    # Its commands start with the path of their Python: in a moved or copied checkout, another's or none.
    { "$venv/bin/python" -c "import sys; sys.exit(sys.version != '''$("$python" -c 'import sys; print(sys.version)')''')" &&
        grep -qF "$(pwd -P)/$venv/bin/" "$venv/bin/pip"; } 2>/dev/null ||
        rm -rf "$venv"
    with_progress "Python packages" install_packages
    with_progress "Spark's jars" "$venv/bin/python" -m dagster_ips.local_spark.jars
    echo "$wanted" >"$mark"
    echo "Ready."
fi
