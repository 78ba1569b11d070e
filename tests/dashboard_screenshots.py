"""`python -m tests.dashboard_screenshots URL FOLDER`: the pictures of the live page, from a proxy that runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.browser import open_browser

DRAWN = "document.querySelector('.worker .more').textContent.includes('busy')"  # it has seen counters grow
PICTURES = {  # width, whether it is dark
    "dashboard-light": (1280, False),
    "dashboard-dark": (1280, True),
    "dashboard-phone": (390, False),
}


async def take(url: str, folder: Path) -> None:
    async with open_browser() as browser:
        for name, (width, dark) in PICTURES.items():
            page = await browser.open(f"{url}/dashboard", width=width, dark=dark)
            await page.until(DRAWN)
            folder.joinpath(f"{name}.png").write_bytes(await page.screenshot())
        if browser.complaints:
            raise SystemExit("\n".join(browser.complaints))


if __name__ == "__main__":
    asyncio.run(take(sys.argv[1].rstrip("/"), Path(sys.argv[2])))
