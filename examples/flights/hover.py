"""One plot as SVG text, whose points, bars and kills say what they are when the mouse is over them.

matplotlib draws; afterwards the shapes that were given a text get it as their `<title>`, which browsers show by themselves and
the script of the report shows at once.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

import matplotlib as mpl
from crash import Kill
from matplotlib.figure import Figure

KILL_COLOURS: Final = {"broker": "#c0392b", "worker": "#8e44ad", "driver": "#d35400", "executor": "#16a085"}
_SVG: Final = "http://www.w3.org/2000/svg"
_TIPS_AT_MOST: Final = 250
"""Of one line; more of them would only lie on each other."""


class Plot:
    """Axes with seconds across, from `begin_ms` on; times are in milliseconds."""

    def __init__(self, up: str, across: str = "seconds", *, begin_ms: int = 0, height: float = 3.6) -> None:
        self._begin_ms = begin_ms
        self._tips: dict[str, Sequence[str]] = {}
        self._figure = Figure(figsize=(10, height), layout="constrained")
        self.axes: Any = self._figure.add_subplot()
        self.axes.set_xlabel(across)
        self.axes.set_ylabel(up)
        self.axes.grid(alpha=0.25)

    def points(
        self,
        times_ms: Sequence[int],
        ups: Sequence[float],
        tips: Sequence[str],
        label: str | None,
        colour: str,
        *,
        size: float = 20,
        alpha: float = 1.0,
    ) -> None:
        """Points that tell something each."""
        self.axes.scatter(
            self._seconds(times_ms), ups, s=size, color=colour, alpha=alpha, label=label, gid=self._gid(tips), zorder=6
        )

    def line(self, times_ms: Sequence[int], ups: Sequence[float], label: str, colour: str, tip: str) -> None:
        """A line; `tip` is a format for its values."""
        self.axes.plot(self._seconds(times_ms), ups, color=colour, label=label)
        self._hidden(times_ms, ups, colour, tip)

    def steps(self, times_ms: Sequence[int], ups: Sequence[float], label: str, colour: str, tip: str) -> None:
        """A line that keeps its value until the next one."""
        self.axes.step(self._seconds(times_ms), ups, where="post", color=colour, label=label)
        self._hidden(times_ms, ups, colour, tip)

    def bars(
        self, places: Sequence[float], ups: Sequence[float], tips: Sequence[str], label: str, colour: str, width: float
    ) -> None:
        """Bars, `places` being where they are across."""
        drawn = self.axes.bar(places, ups, width, label=label, color=colour)
        for bar, tip in zip(drawn, tips, strict=True):
            bar.set_gid(self._gid([tip]))

    def kills(self, kills: Sequence[Kill], *, since_ms: int | None = None, colour: str | None = None) -> None:
        """A dotted line for each kill; names beside them unless they have a run's `colour`."""
        begin_ms = self._begin_ms if since_ms is None else since_ms
        for kill in kills:
            at, shade = (kill.time_ms - begin_ms) / 1000, colour or KILL_COLOURS.get(kill.target, "black")
            tip = f"{kill.target} killed at {kill.point}, second {at:.1f}: {kill.describe()}"
            self.axes.axvline(at, color=shade, linestyle=":", linewidth=1.6)
            self.axes.axvline(at, color=shade, alpha=0.0, linewidth=9, gid=self._gid([tip]))  # wide enough for a mouse
            if colour is None:
                place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top", "ha": "right"}
                name = self.axes.annotate(kill.target, (at, 0.98), color=shade, fontsize=8, annotation_clip=True, **place)
                name.set_in_layout(False)

    def svg(self, legend: str) -> str:
        """The drawing; a page may hold several."""
        if self.axes.get_legend_handles_labels()[0]:
            self.axes.legend(loc=legend)
        text = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]}):
            self._figure.savefig(text, format="svg", metadata={"Date": None})
        ET.register_namespace("", _SVG)
        ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
        root = ET.fromstring(text.getvalue())  # noqa: S314  # matplotlib wrote it
        for metadata in root.findall(f"{{{_SVG}}}metadata"):
            root.remove(metadata)
        for group in root.iter(f"{{{_SVG}}}g"):
            self._tell(group)
        return ET.tostring(root, encoding="unicode")

    def _hidden(self, times_ms: Sequence[int], ups: Sequence[float], colour: str, tip: str) -> None:
        """Points on a line that are there for the mouse alone."""
        every = max(1, -(-len(ups) // _TIPS_AT_MOST))
        few_ms, few = times_ms[::every], ups[::every]
        tips = [f"second {at:.1f}: {tip.format(each)}" for at, each in zip(self._seconds(few_ms), few, strict=True)]
        self.points(few_ms, few, tips, None, colour, size=60, alpha=0.0)

    def _seconds(self, times_ms: Sequence[int]) -> list[float]:
        return [(ms - self._begin_ms) / 1000 for ms in times_ms]

    def _gid(self, tips: Sequence[str]) -> str:
        name = f"tips{len(self._tips)}"
        self._tips[name] = tips
        return name

    def _tell(self, group: ET.Element) -> None:
        tips = self._tips.get(group.attrib.get("id", ""))
        if tips is None:
            return
        del group.attrib["id"]  # other plots of the page use the same names
        shapes = list(group.iter(f"{{{_SVG}}}use")) or [group]
        for shape, tip in zip(shapes, tips, strict=False):
            ET.SubElement(shape, f"{{{_SVG}}}title").text = tip
