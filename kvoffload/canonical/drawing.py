"""A sheet to draw on, measured in inches from its top left corner (extra `plot`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from io import BytesIO
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from attrs import field, frozen

from kvoffload.canonical.palette import colour, hatch, ink

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path
    from matplotlib.text import Text
except ModuleNotFoundError as _missing:
    if _missing.name != "matplotlib":
        raise
    raise ImportError(
        f"{__name__} needs matplotlib: pip install 'kvoffload[plot]'", name="matplotlib"
    ) from None

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

PictureFormat: TypeAlias = Literal["png", "svg"]

SMALL, USUAL, LARGE = 7.0, 8.5, 12.0
LINE: Final = 0.12
"""Height of a line of small text."""
# Width of a letter, for deciding what fits.
_LETTER: Final = 0.065
# A smaller cell than that has no line round it.
_LINES_FROM: Final = 0.06
_BLACK, _WHITE, _GREY, _PALE = "#000000", "#FFFFFF", "#555555", "#E8E8E8"
# What pictures should have whatever the readers' own settings.
_STYLE: Final[dict[RcKeyType, str | float]] = {
    "hatch.linewidth": 0.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "kvoffload",
}


class Box(NamedTuple):
    """A part of the sheet."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


class Raster(NamedTuple):
    """A box that is cut into equal cells."""

    box: Box
    num_columns: int
    num_rows: int

    @property
    def cell_width(self) -> float:
        return self.box.width / self.num_columns

    @property
    def cell_height(self) -> float:
        return self.box.height / self.num_rows

    def cells(self, column: float, row: float, num_columns: float, num_rows: float) -> Box:
        """The box of neighbouring cells, or of a part of one."""
        return Box(
            self.box.left + column * self.cell_width,
            self.box.top + row * self.cell_height,
            num_columns * self.cell_width,
            num_rows * self.cell_height,
        )


@frozen
class Sheet:
    """A figure of `width` x `height` inches, without axes: everything on it is placed."""

    width: float
    height: float
    figure: Figure = field(init=False)

    def __attrs_post_init__(self) -> None:
        # Frozen, so set from below.
        object.__setattr__(self, "figure", Figure(figsize=(self.width, self.height)))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = USUAL,
        bold: bool = False,
        grey: bool = False,
        across: Literal["left", "center", "right"] = "left",
        down: Literal["top", "center", "bottom"] = "top",
        turned: bool = False,
    ) -> Text:
        """A line of text beside, or around, a point."""
        written = Text(
            x,
            self.height - y,
            text,
            fontfamily="DejaVu Sans",
            fontsize=size,
            fontweight="bold" if bold else "normal",
            color=_GREY if grey else _BLACK,
            horizontalalignment=across,
            verticalalignment=down,
            rotation=90 if turned else 0,
            transform=self.figure.dpi_scale_trans,
            zorder=5,
        )
        self.figure.add_artist(written)
        return written

    def block(self, box: Box, rank: int, gid: str, *, pale: bool = False) -> None:
        """A box in the colour of a rank, named `gid`."""
        self._add(
            Rectangle(
                (box.left, self.height - box.bottom),
                box.width,
                box.height,
                facecolor=colour(rank),
                # The colour of a hatch.
                edgecolor=ink(colour(rank)),
                hatch=hatch(rank) or None,
                linewidth=0,
                alpha=0.3 if pale else 1,
                gid=gid,
            )
        )

    def blank(self, box: Box) -> None:
        """A box of which it is not said whose it is."""
        corner = (box.left, self.height - box.bottom)
        self._add(Rectangle(corner, box.width, box.height, facecolor=_PALE, linewidth=0))

    def frame(self, box: Box, *, bold: bool = False) -> None:
        """A line round a box: white between neighbours, or black to mark one."""
        self._add(
            Rectangle(
                (box.left, self.height - box.bottom),
                box.width,
                box.height,
                fill=False,
                edgecolor=_BLACK if bold else _WHITE,
                linewidth=2.0 if bold else 1.2,
                zorder=4 if bold else 3,
            )
        )

    def lines(self, raster: Raster) -> None:
        """Thin lines between the cells, where a cell has room for them."""
        box = raster.box
        ends: list[tuple[float, float]] = []
        if raster.cell_width >= _LINES_FROM:
            for column in range(1, raster.num_columns):
                x = box.left + column * raster.cell_width
                ends += [(x, self.height - box.top), (x, self.height - box.bottom)]
        if raster.cell_height >= _LINES_FROM:
            for row in range(1, raster.num_rows):
                y = self.height - box.top - row * raster.cell_height
                ends += [(box.left, y), (box.right, y)]
        if ends:
            path = Path(ends, [Path.MOVETO, Path.LINETO] * (len(ends) // 2))
            self._add(PathPatch(path, fill=False, edgecolor=_WHITE, linewidth=0.4, zorder=2))

    def label(self, box: Box, texts: tuple[str, ...], rank: int | None) -> None:
        """The first of the texts that has room, in the middle of a box of `rank`'s bytes.

        On white where the box has no one colour: `rank` is None, or is hatched.
        """
        room = [text for text in texts if fits(text, box.width, box.height)]
        if not room:
            return
        plain = rank is not None and not hatch(rank)
        background = colour(rank) if rank is not None and plain else _WHITE
        written = self.text(
            box.left + box.width / 2,
            box.top + box.height / 2,
            room[0],
            bold=True,
            across="center",
            down="center",
        )
        written.set_color(ink(background))
        # It covers the lines behind the text.
        written.set_bbox(
            {
                "boxstyle": "round,pad=0.15",
                "facecolor": background,
                "edgecolor": "none",
                "alpha": 1.0 if plain else 0.9,
            }
        )

    def number(self, box: Box, number: int, rank: int) -> None:
        """A small number in the middle of a box of `rank`'s bytes."""
        if hatch(rank):
            self.label(box, (str(number),), None)
            return
        middle = (box.left + box.width / 2, box.top + box.height / 2)
        written = self.text(*middle, str(number), size=SMALL, across="center", down="center")
        written.set_color(ink(colour(rank)))

    def band(self, start: Box, end: Box, rank: int, gid: str) -> None:
        """A band in the colour of a rank from the right of a box to the left of another."""
        middle = (start.right + end.left) / 2
        corners = [
            (start.right, start.top),
            (middle, start.top),
            (middle, end.top),
            (end.left, end.top),
            (end.left, end.bottom),
            (middle, end.bottom),
            (middle, start.bottom),
            (start.right, start.bottom),
            (start.right, start.top),
        ]
        codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
        self._add(
            PathPatch(
                Path([(x, self.height - y) for x, y in corners], codes),
                facecolor=colour(rank),
                edgecolor=_BLACK if hatch(rank) else _WHITE,
                hatch=hatch(rank) or None,
                linewidth=0.8,
                alpha=0.6,
                gid=gid,
            )
        )

    def _add(self, patch: Rectangle | PathPatch) -> None:
        patch.set_transform(self.figure.dpi_scale_trans)
        self.figure.add_artist(patch)


def styled() -> AbstractContextManager[None]:
    """While it lasts, the readers' own settings do not matter."""
    return rc_context({**_STYLE})


def render(figure: Figure, picture_format: PictureFormat) -> bytes:
    """The figure as a file; the same bytes for the same figure and the same matplotlib."""
    file = BytesIO()
    metadata = {"Date": None} if picture_format == "svg" else {}
    with styled():
        # matplotlib leaves open what else a format takes.
        figure.savefig(  # pyright: ignore[reportUnknownMemberType]
            file, format=picture_format, dpi=120, metadata=metadata
        )
    return file.getvalue()


def fits(text: str, width: float, height: float) -> bool:
    """Whether a line of text has room in so many inches."""
    return len(text) * _LETTER + 0.04 <= width and height >= LINE


def every(length: float, room: float) -> int:
    """Every how many parts of `length` there can be a label that takes `room`; a power of 2."""
    step = 1
    while length * step < room:
        step *= 2
    return step
