"""Find or install what `make test-browser` needs: Chromium, Playwright's Python package, and axe-core from npm.

Prints the path of the browser. Exits with 10, and says why, if something cannot be installed on this machine.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE_VERSION = "4.14.1"
AXE = Path(sys.prefix) / "share" / f"axe-core-{AXE_VERSION}.min.js"
SKIPPED = 10
INSTALL_SECONDS = 600


def find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def ran(*command: str) -> bool:
    """Run a command without its output; return whether it succeeded."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        process = subprocess.run(command, capture_output=True, check=False, timeout=INSTALL_SECONDS, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


def opens_a_page(browser: str) -> bool:
    """Return whether the browser starts: some packages are only a wrapper, and some machines lack libraries."""
    return ran(browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "about:blank")


def install_browser() -> str | None:
    """Install Chromium with apt-get as root, or with a sudo that asks for no password."""
    if not shutil.which("apt-get"):
        return None
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    print("Installing Chromium with apt-get", file=sys.stderr)
    ran(*root, "apt-get", "update", "-qq")
    for name in ("chromium", "chromium-browser"):
        if ran(*root, "apt-get", "install", "-y", "-qq", name) and (path := find_browser()):
            return path
    return None


def fetch_axe() -> None:
    """Fetch axe-core's script into the virtual environment; its tests are skipped if npm or the network is missing."""
    if AXE.exists() or not shutil.which("npm"):
        return
    with tempfile.TemporaryDirectory() as folder:
        if not ran("npm", "pack", f"axe-core@{AXE_VERSION}", "--pack-destination", folder, "--silent"):
            return
        for path in Path(folder).glob("*.tgz"):
            with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
                script = archive.extractfile("package/axe.min.js")
                assert script is not None
                AXE.parent.mkdir(parents=True, exist_ok=True)
                AXE.write_bytes(script.read())


def main() -> int:
    if importlib.util.find_spec("playwright") is None:
        print("test-browser is skipped: the package playwright cannot be installed", file=sys.stderr)
        return SKIPPED
    browser = find_browser() or install_browser()
    if browser is None:
        print("test-browser is skipped: there is no Chromium, and apt-get cannot install it here", file=sys.stderr)
        return SKIPPED
    if not opens_a_page(browser):
        print(f"test-browser is skipped: {browser} does not start on this machine", file=sys.stderr)
        return SKIPPED
    fetch_axe()
    if not AXE.exists():
        print("axe-core cannot be fetched from npm; the accessibility check is skipped", file=sys.stderr)
    print(browser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
