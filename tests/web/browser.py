"""Drive a real headless Chromium over the WebDriver protocol, with the standard library alone."""

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's own key of an element's id


def missing() -> str | None:
    """Name the programs that a browser needs and this machine lacks; None if it lacks none."""
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(lacks)}" if lacks else None


class Browser:
    """Drive one window. Elements are named by CSS selectors."""

    def __init__(self, profile: Path) -> None:
        self._driver, port = _start_driver()
        self._url = f"http://127.0.0.1:{port}"
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self._url += f"/session/{self._call('POST', '/session', capabilities=wanted)['sessionId']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.communicate(timeout=10)

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self._call("POST", "/url", url=url)

    def click(self, selector: str) -> None:
        """Click as a mouse does: fails when something else covers the element."""
        self._call("POST", f"/element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Replace a field's content."""
        element = self._find(selector)
        self._call("POST", f"/element/{element}/clear")
        self._call("POST", f"/element/{element}/value", text=text)

    def press(self, *keys: str) -> None:
        """Press keys together, on the element that has the focus."""
        actions = [{"type": "keyDown", "value": key} for key in keys]
        actions += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self._call("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def run(self, script: str) -> Any:
        """Run a function body in the page and return its value."""
        return self._call("POST", "/execute/sync", script=script, args=[])

    def text(self, selector: str) -> str:
        """Return the element's textContent."""
        return str(self.run(f"return document.querySelector({json.dumps(selector)}).textContent"))

    def wait(self, condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
        """Wait for a truthy value of `condition` and return it."""
        until = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < until, f"waited {timeout_s} s in vain"
            time.sleep(0.02)
        return value

    def emulate(self, **parameters: Any) -> None:
        """Send a DevTools command: `method`, then its parameters."""
        method = parameters.pop("method")
        self._call("POST", "/goog/cdp/execute", cmd=method, params=parameters)

    def complaints(self) -> list[str]:
        """Return the console's messages since the last call: script errors, refused content."""
        return [entry["message"] for entry in self._call("POST", "/se/log", type="browser")]

    def screenshot(self, path: Path) -> None:
        """Write the window as PNG."""
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def _find(self, selector: str) -> str:
        return str(self._call("POST", "/element", using="css selector", value=selector)[ELEMENT])

    def _call(self, method: str, path: str, **body: Any) -> Any:
        request = urllib.request.Request(self._url + path, method=method)
        if method == "POST":
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(error)["value"]["message"]) from error


def _start_driver(tries: int = 5) -> tuple[subprocess.Popen[str], int]:
    """Start chromedriver and return it with its port.

    It binds one port in both families of addresses, and ends where its choice is free in only one: so it is tried anew.
    """
    output: list[str] = []
    for _ in range(tries):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert driver.stdout is not None
        for line in driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return driver, int(found[1])
            output.append(line)
        output.append(f"chromedriver ended with {driver.wait()}\n")
    raise RuntimeError("".join(output))


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Open a browser for the block; without one installed the test is skipped, but fails on CI."""
    lack = missing()
    if lack is not None and os.environ.get("CI") != "true":
        pytest.skip(lack)
    with Browser(folder) as browser:
        yield browser
