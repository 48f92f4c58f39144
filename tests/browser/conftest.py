"""The example project with everything that Dagster runs for it, and a browser on its UI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from example_project.demo.services import Services
from tests.browser.ui import Ui


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The example with 14 days landed. Its sensors run, except the one that launches runs."""
    with Services(tmp_path_factory.mktemp("example") / "demo") as services:
        services.start_spark()
        land(services, days=14)
        services.start_dagster(automation=False)
        yield services


def land(services: Services, *, days: int) -> None:
    """Land days with commits of an outside job."""
    services.run("python", "-m", "example_project.ingest", f"--days={days}", "--rows-per-day=5000")


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a browser, which is closed after each file: as long as Playwright runs, so does its event loop.

    Other tests in the same process would fail to start their own.
    """
    # `make test` also collects this file, and has no Playwright.
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    # Chromium's sandbox doesn't work for root, and containers run their tests as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
        page.set_default_timeout(30_000)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def ui(page: Any, example: Services) -> Ui:  # noqa: ANN401  # Playwright's type; Playwright may not be installed
    folder = os.environ.get("SCREENSHOTS")
    return Ui(page, f"http://127.0.0.1:{example.webserver_port}", Path(folder) if folder else None)
