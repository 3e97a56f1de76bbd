"""The Python samples of the pages: found, and run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_URL_IN_SAMPLES: Final = "pulsar://127.0.0.1:6650"
_BLOCK: Final = re.compile(r"(?:<!-- (?P<mark>[^>]*?) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Sample:
    """One fenced block. `mark` is the comment in the line before it: "run: …" or "not run: why"."""

    page: Path
    line: int
    mark: str
    code: str

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.page.relative_to(_CHECKOUT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """True when it is to be run."""
        return self.mark.startswith("run:")

    def run(self, service_url: str, *, python: str = sys.executable, cwd: Path | None = None) -> str:
        """Run it against the server at `service_url`; what it printed. Raises AssertionError with its errors."""
        code = self.code.replace(_URL_IN_SAMPLES, service_url)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-W", "error", "-c", code],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{self.name} failed:\n{done.stderr}"
        return done.stdout


def samples_of(page: Path) -> Iterator[Sample]:
    """The samples of one page."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        yield Sample(page, line, match["mark"] or "", match["code"])


def all_samples() -> list[Sample]:
    """The samples of README and docs."""
    pages = [_CHECKOUT / "README.md", *sorted((_CHECKOUT / "docs").rglob("*.md"))]
    return [sample for page in pages for sample in samples_of(page)]
