"""A headless Chromium, driven through a pair of pipes: Chrome's DevTools protocol, JSON with a NUL after each message.

One process for as long as the context lasts; its profile and all its children go with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from typing import Any

CHROMIUM = shutil.which("chromium")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-proxy-server", "--hide-scrollbars", "--mute-audio", "--force-color-profile=srgb"),
)
PATIENCE_S = 30.0
MAX_MESSAGE_BYTES = 64 << 20  # a screenshot is one
ON_3_AND_4 = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null'  # where Chromium reads commands and writes answers
LOOK = """new Promise(done => {
    const look = () => {
        let is = false
        try { is = Boolean(CONDITION) } catch {}
        is ? done(true) : setTimeout(look, 50)
    }
    look()
})"""


class BrowserError(Exception):
    """The browser refused a command, or a script of a page failed."""


class Browser:
    """Maintains which answers are waited for, and what pages complained of since it started."""

    def __init__(self, answers: asyncio.StreamReader, commands: asyncio.StreamWriter) -> None:
        self.complaints: list[str] = []  # uncaught errors, refused loads, console.error
        self._answers = answers
        self._commands = commands
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        """Until the browser closes the pipe."""
        while True:
            try:
                raw = await self._answers.readuntil(b"\0")
            except asyncio.IncompleteReadError:
                break
            self._take(json.loads(raw[:-1]))
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(BrowserError("the browser ended"))

    def _take(self, message: dict[str, Any]) -> None:
        answer = self._asked.pop(message.get("id", 0), None)
        if answer is not None and not answer.done():
            if "error" in message:
                answer.set_exception(BrowserError(str(message["error"])))
            else:
                answer.set_result(message["result"])
        elif message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(message["params"]))

    async def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._commands.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_S):
            return await answer

    async def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Page:
        """A new page, its document loaded or not yet."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if width < 600 else 1, "mobile": width < 600}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        media = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        await page.call("Emulation.setEmulatedMedia", features=features)
        await page.call("Page.navigate", url=url)
        return page


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    async def call(self, method: str, **params: Any) -> Any:
        return await self._browser.call(method, self._session, **params)

    async def close(self) -> None:
        await self.call("Page.close")

    async def evaluate(self, script: str) -> Any:
        """The script's value, or its promise's. Raises BrowserError."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Waits until this JavaScript is true, also while the page still loads."""
        script = LOOK.replace("CONDITION", condition)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(BrowserError):  # the document was replaced meanwhile
                    await self.evaluate(script)
                    return

    async def text(self, selector: str) -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def screenshot(self) -> bytes:
        """The whole page, as PNG."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Needs Debian's `chromium`."""
    assert CHROMIUM is not None, "chromium is not on PATH: apt-get install chromium"
    with tempfile.TemporaryDirectory(prefix="pdserve-browser-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", ON_3_AND_4, "browser", CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        browser = Browser(process.stdout, process.stdin)
        reading = asyncio.create_task(browser.read())
        try:
            yield browser
        finally:
            with contextlib.suppress(BrowserError, TimeoutError):  # whoever ends by itself has ended its children
                await browser.call("Browser.close")
                async with asyncio.timeout(PATIENCE_S):
                    await process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.gather(reading, process.wait())
