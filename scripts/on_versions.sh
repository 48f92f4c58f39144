#!/usr/bin/env bash
# Runs tests on a Python and a Spark of your choice, with everything else as constraints.txt pins it:
#     scripts/on_versions.sh python3.12 4.0.1 -m "not slow" tests/promises
# Its environment is made once, in .local/versions.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 spark=$2
shift 2

export DAGSTER_IPS_CACHE="${DAGSTER_IPS_CACHE:-$PWD/.local/cache}"
environment=.local/versions/python-$("$python" -c 'import platform; print(platform.python_version())')-spark-$spark
constraints=$environment/constraints.txt
pinned=$(sed "s/^pyspark==.*/pyspark==$spark/" constraints.txt)
if [ "$(cat "$constraints" 2>/dev/null)" != "$pinned" ]; then
    echo "Creating $environment, which takes two or three minutes."
    "$python" -m venv --clear "$environment"
    printf '%s\n' "$pinned" >"$environment/wanted.txt"
    "$environment/bin/python" -m pip --disable-pip-version-check --no-input -q install -c "$environment/wanted.txt" -e '.[example,dev]'
    mv "$environment/wanted.txt" "$constraints"
fi
"$environment/bin/python" -m dagster_ips.local_spark.jars >/dev/null
exec "$environment/bin/python" -m pytest "$@"
