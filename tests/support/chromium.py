"""A Chromium for the tests: one that is here, else Debian's, else Playwright's. No browser is an error."""

import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip


def installed() -> str | None:
    """The path of a Chromium of this machine, or of Playwright's own; None if there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if shutil.which(own) else None


def install() -> bool:
    """Whether there is one in the end."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium-headless-shell"]]
    if shutil.which("apt-get"):
        get = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "-q", "--no-install-recommends", "chromium"]
        ways = [["apt-get", "update", "-q"], get, *ways]
    for way in ways:
        if installed() is not None:
            return True
        print(" ".join(way), flush=True)
        subprocess.run(way, stdout=subprocess.DEVNULL)
    return installed() is not None


if __name__ == "__main__":
    if not install():
        sys.exit("Error: the tests of the page need Chromium, and none could be installed; install it and try again")
