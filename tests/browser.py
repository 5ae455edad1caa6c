"""Chromium through chromedriver, as a user's browser: pages, keys, scripts, pictures.

Speaks the W3C WebDriver protocol, of which a page's tests need a dozen commands.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="needs chromium and chromedriver",
)

# Keys, as the protocol names them.
LEFT, RIGHT, HOME, TAB = "\ue012", "\ue014", "\ue011", "\ue004"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages scroll at once: what is clicked is where it was found.
    "--force-prefers-reduced-motion",
)


class Browser:
    """A window of a headless Chromium."""

    def __init__(self, address: str, flags: tuple[str, ...]) -> None:
        self._address = address
        options = {"args": list(flags)}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        found = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def _send(self, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = Request(self._address + path, body, method=method)
        try:
            with urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def _do(self, command: str, content: Any = None) -> Any:
        return self._send("POST", self._session + command, content or {})

    def resize(self, width: int, height: int) -> None:
        """Make the window that large."""
        self._do("/window/rect", {"width": width, "height": height})

    def open(self, path: Path) -> None:
        """Load a file."""
        self._do("/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script in the page returns."""
        return self._do("/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, selector: str, keys: str) -> None:
        """Press keys in an element."""
        element = self._do("/element", {"using": "css selector", "value": selector})[_ELEMENT]
        self._do(f"/element/{element}/value", {"text": keys})

    def click(self, selector: str) -> None:
        """Click an element."""
        element = self._do("/element", {"using": "css selector", "value": selector})[_ELEMENT]
        self._do(f"/element/{element}/click")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until an expression of the page is true."""
        until = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < until, f"{condition} is not true after {seconds} s"
            time.sleep(0.02)

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return base64.b64decode(self._send("GET", self._session + "/screenshot"))

    def show_as(self, medium: str) -> None:
        """Show the page as a medium does: "screen" or "print"."""
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"media": medium}}
        self._do("/goog/cdp/execute", command)

    def paper(self) -> bytes:
        """Return the page as PDF."""
        return base64.b64decode(self._do("/print"))

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the page's console."""
        found = self._do("/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def close(self) -> None:
        """End the browser."""
        self._send("DELETE", self._session)


@contextmanager
def chromium(folder: Path, *flags: str) -> Iterator[Browser]:
    """Run a browser with an empty profile in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["chromedriver", f"--port={port}", "--log-level=OFF"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            address = f"http://127.0.0.1:{port}"
            _await(address)
            browser = Browser(address, (*_FLAGS, f"--user-data-dir={folder / 'profile'}", *flags))
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()


def _await(address: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urlopen(address + "/status", timeout=10):
                return
        except (URLError, ConnectionError):
            assert time.monotonic() < until, "chromedriver does not answer"
            time.sleep(0.05)
