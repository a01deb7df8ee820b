"""A real Chromium, and what tests ask of a page in it: what is outside, too pale, or loaded."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A selenium driver with an empty profile; skips the test where there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    service = shutil.which("chromedriver")
    if not browser or not service:
        pytest.skip("no chromium with chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    # The path is given, so that selenium looks for no driver to download.
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(service))
    try:
        yield driver
    finally:
        driver.quit()


def look(driver: Any, page: Path, width: int, scheme: str) -> None:
    """Load a page as on a screen of that width whose owner likes `light` or `dark`."""
    driver.get("about:blank")
    for log in ("browser", "performance"):
        driver.get_log(log)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())


def forget(driver: Any) -> None:
    """Undo `look` and `see_as`."""
    driver.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": "none"})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def see_as(driver: Any, deficiency: str) -> None:
    """Show colours as someone with `protanopia`, `deuteranopia` or `tritanopia` sees them."""
    driver.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})


def screenshot(driver: Any, save: Path) -> numpy.ndarray:
    """The whole page as an array of height, width and red, green, blue; also saved."""
    from PIL import Image

    height = driver.execute_script("return document.documentElement.scrollHeight")
    width = driver.execute_script("return window.innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
    asked = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    data = base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])
    save.write_bytes(data)
    return numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def requested(driver: Any) -> set[str]:
    """Every address that was asked for since `look`, but for the page's fragment."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return {
        event["params"]["request"]["url"].split("#")[0]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }


def outside(driver: Any) -> list[str]:
    """Texts that reach over the sides of the screen, but for those in a box that scrolls."""
    return driver.execute_script(OUTSIDE)


def pale(driver: Any, least: float = 4.5) -> dict[str, float]:
    """Texts whose contrast with what is behind them is under `least` (WCAG 2.2, 1.4.3)."""
    return driver.execute_script(PALE, least)


OUTSIDE = """
function scrolls(node) {
  for (; node; node = node.parentElement) {
    if (["auto", "scroll"].includes(getComputedStyle(node).overflowX)) return true;
  }
  return false;
}
const found = [];
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
if (wide > 0) found.push(`the page scrolls sideways by ${wide}`);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const range = document.createRange();
  range.selectNodeContents(walker.currentNode);
  for (const { left, right, width } of range.getClientRects()) {
    // A space at the end of a folded line hangs over it.
    const over = width > 12 && (left < 0 || right > innerWidth);
    if (over && !scrolls(walker.currentNode.parentElement)) {
      found.push(walker.currentNode.textContent.slice(0, 60));
      break;
    }
  }
}
return found;
"""

PALE = """
function parts(colour) {
  const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
  return [r, g, b, a];
}
function over(top, share, below) { return below.map((v, n) => v + (top[n] - v) * share); }
function light(colour) {
  const [r, g, b] = colour.map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function chain(node) {
  const nodes = [];
  for (; node; node = node.parentElement) nodes.unshift(node);
  return nodes;
}
const found = {};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim();
  const node = walker.currentNode.parentElement;
  if (!text || !node.getClientRects().length) continue;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  let behind = dark ? [18, 18, 18] : [255, 255, 255], opacity = 1;
  for (const one of chain(node)) {
    const style = getComputedStyle(one);
    opacity *= Number(style.opacity);
    const [r, g, b, a] = parts(style.backgroundColor);
    behind = over([r, g, b], a * opacity, behind);
  }
  const [r, g, b, a] = parts(getComputedStyle(node).color);
  const both = [light(over([r, g, b], a * opacity, behind)), light(behind)].sort((x, y) => x - y);
  const ratio = (both[1] + 0.05) / (both[0] + 0.05);
  if (ratio < arguments[0]) found[text.slice(0, 60)] = ratio;
}
return found;
"""
