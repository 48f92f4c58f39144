#!/usr/bin/env bash
# For the tests in a browser, after setup.sh: Playwright in .local/venv, pinned in constraints.txt, and a Chromium. The
# machine's own Chromium or Chrome will do; else Debian's package, else the one that Playwright downloads.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.local/venv/bin/python
log=.local/setup_browser.log
pinned=$(sed -n 's/^playwright==//p' constraints.txt)

has_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome ||
        "$python" -c 'import os, sys; from playwright.sync_api import sync_playwright as start
with start() as p: sys.exit(not os.path.exists(p.chromium.executable_path))'
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

if [ "$("$python" -c 'import importlib.metadata as m; print(m.version("playwright"))' 2>/dev/null)" != "$pinned" ]; then
    echo "Downloading Playwright, about 46 MB, for the tests in a browser."
    "$python" -m pip --disable-pip-version-check --no-input install --progress-bar off -c constraints.txt -e '.[browser]' \
        >"$log" 2>&1 || { tail -n 15 "$log" >&2; exit 1; }
fi
if ! has_browser >/dev/null 2>&1; then
    echo "Installing Chromium, about 100 MB, for the tests in a browser."
    if command -v apt-get >/dev/null && { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq chromium; } >>"$log" 2>&1; then
        :
    else
        "$python" -m playwright install chromium >>"$log" 2>&1 || true
    fi
fi
if ! has_browser >/dev/null 2>&1; then
    echo "There is no Chromium, and none could be installed ($log). To fix it: sudo apt-get install -y chromium" >&2
    exit 1
fi
