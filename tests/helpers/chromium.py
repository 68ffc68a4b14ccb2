"""A page in headless Chromium, asked in JavaScript: over a pipe, in the browser's own protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S

SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)
ASK, ANSWER = 3, 4
"""The file descriptors that Chromium reads and writes."""


class Page:
    """An open page.

    Args:
        asks: where requests are written.
        answers: where replies and events are read.
    """

    def __init__(self, asks: int, answers: int) -> None:
        self._asks = os.fdopen(asks, "wb", 0)
        self._answers = os.fdopen(answers, "rb")
        self._number, self._session = 0, ""
        self.complaints: list[str] = []
        """What the console was told of errors, and requests to a network."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        self._asks.write(
            json.dumps({"id": self._number, "method": method, "params": params, **session}).encode()
            + b"\0"
        )
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def _message(self) -> dict[str, Any]:
        data = bytearray()
        while not data.endswith(b"\0"):
            byte = self._answers.read(1) if not data else self._answers.read1(1)  # type: ignore[attr-defined]
            assert byte, "Chromium ended"
            data += byte
        message: dict[str, Any] = json.loads(data[:-1])
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "about:", "data:")
        ):
            self.complaints.append(params["request"]["url"])

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Of the window."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def media(self, **features: str) -> None:
        """What a style sheet asks of the surroundings, as ``prefers_color_scheme="dark"``."""
        media_features = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self._ask("Emulation.setEmulatedMedia", features=media_features)

    def open(self, path: Path) -> None:
        """From the disk, until it has been drawn."""
        self._ask("Page.navigate", url=path.resolve().as_uri())
        self.until(
            "document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'"
        )

    def ask(self, expression: str) -> Any:
        """The value of an expression; a promise's when it is kept."""
        result = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until it is true: looked at whenever the page draws."""
        looks = (
            f"new Promise((done) => {{ const look = () => (({expression}) ? done(1) :"
            " setTimeout(look, 10)); look(); })"
        )
        self.ask(looks)

    def busy_seconds(self) -> float:
        """What scripts, styles and layout of the page took since it was opened."""
        metrics = {
            each["name"]: each["value"] for each in self._ask("Performance.getMetrics")["metrics"]
        }
        return float(metrics["TaskDuration"])

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self._ask("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key, down and up."""
        codes = {
            "Enter": 13,
            "Escape": 27,
            "ArrowDown": 40,
            "ArrowUp": 38,
            "ArrowLeft": 37,
            "ArrowRight": 39,
            "Home": 36,
        }
        code = {"windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        for kind in ("rawKeyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, **code)

    def click(self, x: float, y: float) -> None:
        """With the mouse."""
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def turn(self, x: float, y: float, pixels: int, *, control: bool = False) -> None:
        """The wheel: up where the pixels are negative."""
        held = {"modifiers": 2} if control else {}
        self._ask(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=pixels, **held
        )

    def drag(self, x: float, y: float, by: float) -> None:
        """With the mouse, to the right."""
        for kind, at in (
            ("mousePressed", x),
            ("mouseMoved", x + by / 2),
            ("mouseMoved", x + by),
            ("mouseReleased", x + by),
        ):
            self._ask(
                "Input.dispatchMouseEvent",
                type=kind,
                x=at,
                y=y,
                button="left",
                buttons=1,
                clickCount=1,
            )

    def tap(self, x: float, y: float) -> None:
        """With a finger."""
        self._ask("Emulation.setTouchEmulationEnabled", enabled=True)
        self._ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self._ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        data = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """The browser, too."""
        self._asks.close()
        self._answers.close()


@contextmanager
def chromium(directory: Path) -> Iterator[Page]:
    """A browser of our own with an empty page. Skips the test where there is none.

    Args:
        directory: for its files.
    """
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    asked, asks = os.pipe()
    answers, answered = os.pipe()

    def as_it_expects() -> None:
        os.dup2(asked, 200)
        os.dup2(answered, 201)
        os.dup2(200, ASK)
        os.dup2(201, ANSWER)

    command = [program, *SWITCHES, f"--user-data-dir={directory}", "about:blank"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    browser = subprocess.Popen(command, preexec_fn=as_it_expects, close_fds=False, **quiet)
    os.close(asked)
    os.close(answered)
    watchdog = threading.Timer(PATIENCE_S, browser.kill)
    watchdog.start()
    try:
        page = Page(asks, answers)
        yield page
        page.close()
    finally:
        watchdog.cancel()
        browser.kill()
        browser.wait()
