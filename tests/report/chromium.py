"""Control a headless Chromium by the DevTools protocol over a pipe, without a driver."""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
# Chromium reads messages from descriptor 3 and writes messages to descriptor 4. This program moves
# two pipes to these descriptors, and then replaces itself by Chromium.
START = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for pipe, number in zip(pipes, (3, 4)):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page in the browser.

    Attributes:
        complaints: Errors and warnings of the console, and uncaught exceptions.
        requests: Addresses of requests, except for the page itself and data URLs.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._numbers = itertools.count(1)
        self._received = b""
        self._session: str | None = None
        self._address = ""
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        """Open a tab and enable its events."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the size of the window in CSS pixels, the theme, and whether to emulate a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def open(self, path: Path) -> None:
        self._address = path.resolve().as_uri()
        self.call("Page.navigate", url=self._address)
        self.wait("document.documentElement && document.documentElement.dataset.drawn")

    def wait(self, condition: str, seconds: float = 60) -> Any:
        """Wait until a JavaScript expression is true, and return its value.

        Raises:
            TimeoutError: The expression is not true within the time.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(condition):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{condition} is never true; errors of the page: {self.complaints}")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression. JSON must be able to represent the value.

        Raises:
            RuntimeError: The expression raises an exception.
        """
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def seconds_of_work(self) -> float:
        """Return the CPU time of the page's main thread in seconds.

        Unlike wall-clock time, CPU time does not depend on other processes.
        """
        metrics = {m["name"]: m["value"] for m in self.call("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._outgoing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            if not select.select([self._incoming], [], [], 120)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._incoming, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"])[:1000])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(parameters["args"])[:1000])
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                address = parameters["request"]["url"]
                if address.partition("#")[0] != self._address and not address.startswith("data:"):
                    self.requests.append(address)


@contextlib.contextmanager
def opened(browser: str, folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in a folder, yield a page, and end the browser."""
    to_browser, outgoing = os.pipe()
    incoming, from_browser = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            START,
            str(to_browser),
            str(from_browser),
            browser,
            *FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
        ],
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(incoming, outgoing)
        page.attach()
        yield page
    finally:
        os.close(outgoing)  # Chromium exits when the pipe is closed
        os.close(incoming)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
