"""Functions that operate the controls of a viewer's page in a tab of a real browser."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

ARGS = (
    *("--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    *("--disable-gpu-rasterization", "--disable-gpu-compositing"),
)
"""Flags to run Chromium without a display or GPU. Emulated OpenGL draws only the 3D scene, not the rest of the page."""

WAIT_MS = 200_000
"""Timeout of every wait for the browser, in ms. It is long, because drawing without a GPU is slow on a busy machine."""

FEW_PIXELS = "?fixedDpr=0.2"
"""URL query that makes the viewer draw at a low resolution, and thus faster."""

FEW_FRAMES = """
window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 1000);
window.cancelAnimationFrame = clearTimeout;
"""
"""Script that limits a page to one frame per second. Without it, a page draws as many frames as the CPU allows."""

SMALL_ENVIRONMENT = """
const gray = "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6j\\
q62rZ4C8ybqmx5moq6T/wAALCAAgAEABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAAAAT/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oA\\
CAEBAAA/AKQAAAAAAAAAB//Z";
const image = new Blob([Uint8Array.from(atob(gray), letter => letter.charCodeAt(0))], {type: "image/jpeg"});
const addressOf = URL.createObjectURL.bind(URL);
URL.createObjectURL = blob => addressOf(blob.type === image.type ? image : blob);
"""
"""Script that replaces the viewer's environment map, the picture that lights the scene, with a small gray picture.

The viewer blurs the picture when it starts. With the original picture of 1024 x 512 pixels, this takes several seconds
of CPU time. The gray picture has only 64 x 32 pixels.
"""


def row(tab: Page, label: str) -> Locator:
    """Return the row that contains the label and the control of a setting."""
    return tab.get_by_text(label, exact=True).locator("xpath=ancestor::div[2]")


def number(tab: Page, label: str, value: str) -> None:
    """Type a number into the field next to a slider."""
    box = row(tab, label).locator("input").last
    box.fill(value)
    box.press("Enter")


def choose(tab: Page, label: str, option: str) -> None:
    """Choose an option of a dropdown."""
    row(tab, label).locator("input").first.click()
    tab.get_by_role("option", name=option, exact=True).click()
