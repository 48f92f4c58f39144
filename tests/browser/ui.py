"""Dagster's UI as a person uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Every element on screen that shows a red of Dagster's stylesheet, in the current theme.
_RED_THINGS = """() => {
    const probe = document.body.appendChild(document.createElement('i'));
    const resolved = name => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
    const names = ['--color-text-red', '--color-accent-red', '--color-background-red', '--color-core-red500'];
    const plain = resolved('--color-text-default');
    const reds = new Set(names.map(resolved).filter(color => color !== plain));
    const found = [...document.querySelectorAll('body *')].filter(element => {
        const style = getComputedStyle(element), box = element.getBoundingClientRect();
        if (element === probe || !box.width || !box.height || style.visibility === 'hidden') return false;
        const owns = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        return (owns && reds.has(style.color)) || reds.has(style.backgroundColor) || reds.has(style.fill);
    });
    probe.remove();
    if (!reds.size) throw new Error('the stylesheet has no red');
    return found.map(element => `${element.tagName}: ${(element.innerText || '').slice(0, 80)}`);
}"""


class Ui:
    """Pages by their path. Screenshots are taken only if a folder is given."""

    def __init__(self, page: Any, address: str, screenshots: Path | None) -> None:  # noqa: ANN401  # Playwright's type
        self.page = page
        self._address = address
        self._screenshots = screenshots

    def open(self, path: str, *, until: str) -> None:
        """Open the page and wait until the text is shown."""
        self.page.goto(self._address + path)
        self.wait_for(until)

    def wait_for(self, text: str) -> None:
        """Wait until the text is shown. If it isn't shown in time, the error names the text."""
        self.page.get_by_text(text).first.wait_for(timeout=60_000)

    def launch_backfill(self, asset: str, partitions: str) -> None:
        """Materialize ``partitions``, written as in the dialog: ``2026-01-12, [2026-01-05...2026-01-06]``."""
        self.open(f"/assets/{asset}", until="Definition")
        self.page.locator("button:has-text('Materialize')").first.click()
        self.wait_for("Partition selection")
        self.page.wait_for_timeout(1000)
        everything = self.page.get_by_text(
            "Show all partitions"
        )  # Dagster offers this if the first partitions are too long ago.
        if everything.count():
            everything.first.click()
        keys = self.page.locator("input[placeholder^='ex: ']").last
        keys.fill(partitions)
        keys.press("Enter")
        self.page.wait_for_timeout(1000)
        self.screenshot("backfill")
        self.page.get_by_role("button", name="Launch backfill").click()
        self.wait_for("Created backfill")

    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def red_things(self) -> list[str]:
        """Everything on screen in red, as tag and text."""
        self.page.wait_for_load_state("networkidle")
        return list(self.page.evaluate(_RED_THINGS))

    def screenshot(self, name: str) -> None:
        if self._screenshots is not None:
            self._screenshots.mkdir(parents=True, exist_ok=True)
            self.page.wait_for_timeout(1500)
            self.page.screenshot(path=self._screenshots / f"{name}.png")
