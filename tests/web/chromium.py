"""The system's Chromium without a window, for what people see: tests and benchmarks of the pages.

Nothing is fetched: where there is no ``chromium`` and no ``chromedriver``, ``missing`` says so.
"""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # Its sandbox wants a user namespace, which containers rarely give; only our own pages are opened.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DESKTOP_SIZE, PHONE_SIZE = (1300, 900), (360, 740)


def _browser_path() -> str | None:
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def missing_reason() -> str | None:
    """What keeps a browser from being started here; None where nothing does."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install '.[dev]'"
    if _browser_path() is None:
        return f"no browser: expected one of {', '.join(_BROWSERS)} on the PATH"
    return None if shutil.which("chromedriver") else "no chromedriver on the PATH"


class Browser:
    """A browser with one tab.

    Args:
        driver: Of selenium.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run_script(self, script: str, *arguments: Any) -> Any:
        """What a script of the page gives; a promise is waited for."""
        return self.driver.execute_script(script, *arguments)

    def run_command(self, name: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def set_viewport(self, size: tuple[int, int] = DESKTOP_SIZE, dark: bool = False) -> None:
        """Show pages so large, light or dark; a window cannot be made as narrow as a phone."""
        width, height = size
        self.run_command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        # Colours that are still on their way to others would be measured on it.
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.run_command("Emulation.setEmulatedMedia", features=[scheme, still])

    def console_messages(self) -> list[str]:
        """What the console was told since the last call, but for debugging."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "DEBUG"]

    def memory(self) -> dict[str, float]:
        """What the page holds, after what nobody needs was let go: bytes of JavaScript, nodes, listeners."""
        self.run_command("HeapProfiler.collectGarbage")
        found = {metric["name"]: metric["value"] for metric in self.run_command("Performance.getMetrics")["metrics"]}
        return {name: found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser, for the length of a block; see ``missing`` for whether there is one."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _browser_path() or ""
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Pages of a live league load for ever, as it were: whoever opens one waits for what they want to see.
    options.page_load_strategy = "eager"
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser = Browser(driver)
        browser.run_command("Performance.enable")
        browser.set_viewport()
        yield browser
    finally:
        driver.quit()
