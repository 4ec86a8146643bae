"""Pictures of layouts: what is drawn, in which colours, and as which file."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from numpy.typing import NDArray

from kvoffload import (
    AttentionLayer,
    Encoding,
    KVParallelConfig,
    LatentLayer,
    OpaqueLayer,
    PackedLayers,
    Resharding,
    derive_mappings,
)
from kvoffload.canonical.layers import Layer
from kvoffload.canonical.picture import draw_layout, render
from kvoffload.canonical.report import Configuration, Target
from kvoffload.cli import run
from spec_tests.cli_helpers import Output

LATENT = LatentLayer(row_elements=576, element_size_bytes=2)
OPAQUE = OpaqueLayer(page_size_bytes=64)


def attention(heads: int, encoding: Encoding = Encoding.PACKED_NHD) -> AttentionLayer:
    return AttentionLayer(
        total_kv_heads=heads, head_size=4, element_size_bytes=2, encoding=encoding
    )


def workers(tp: int = 1, dcp: int = 1, turn: int = 1, block: int = 16) -> KVParallelConfig:
    return KVParallelConfig(tp_size=tp, dcp_size=dcp, interleave=turn, block_size=block)


def configuration(layer: Layer, parallel: KVParallelConfig) -> Configuration:
    return Configuration(parallel, derive_mappings(layer, parallel), range(parallel.num_ranks))


def target(layer: Layer, source: Configuration, parallel: KVParallelConfig) -> Target:
    other = configuration(layer, parallel)
    return Target(other, 0, Resharding(source.mappings, other.mappings).copies(0))


def named(figure: Figure) -> dict[str, list[Patch]]:
    """The patches that have a name, by it."""
    found: dict[str, list[Patch]] = defaultdict(list)
    children: list[Artist] = figure.get_children()
    for artist in children:
        gid: object = artist.get_gid()
        if isinstance(artist, Patch) and isinstance(gid, str):
            found[gid].append(artist)
    return found


def texts(figure: Figure) -> list[str]:
    children: list[Artist] = figure.get_children()
    return [artist.get_text() for artist in children if isinstance(artist, Text)]


def area(patches: list[Patch]) -> float:
    rectangles = [patch for patch in patches if isinstance(patch, Rectangle)]
    assert len(rectangles) == len(patches)
    return sum(patch.get_width() * patch.get_height() for patch in rectangles)


def outline(patches: list[Patch]) -> float:
    """The area of the smallest rectangle around rectangles."""
    boxes = [patch.get_bbox() for patch in patches if isinstance(patch, Rectangle)]
    width = max(box.x1 for box in boxes) - min(box.x0 for box in boxes)
    return float(width * (max(box.y1 for box in boxes) - min(box.y0 for box in boxes)))


def points(band: Patch) -> list[list[float]]:
    """The corners of a band, as x and y."""
    corners: NDArray[np.float64] = np.asarray(band.get_path().vertices, dtype=np.float64)
    found: list[list[float]] = corners.tolist()
    return found


def looks(patch: Patch) -> tuple[object, str | None]:
    hatch: str | None = patch.get_hatch()
    return patch.get_facecolor(), hatch


CASES: list[tuple[Layer, KVParallelConfig]] = [
    (attention(8), workers(2)),
    (attention(8), workers(4)),
    (attention(8, Encoding.PACKED_HND), workers(4)),
    (attention(8, Encoding.SPLIT_NHD), workers(8)),
    (attention(4), workers(8)),
    (attention(4, Encoding.SPLIT_HND), workers(8, dcp=2, turn=4)),
    (attention(1), workers(16)),
    (attention(16), workers(16)),
    (LATENT, workers(8, dcp=2)),
    (LATENT, workers(3, block=17)),
    (OPAQUE, workers(5)),
    (PackedLayers(layers=(LATENT, OPAQUE)), workers(1)),
]


@pytest.mark.parametrize(("layer", "parallel"), CASES, ids=lambda value: type(value).__name__)
def test_every_rank_has_its_cells_and_its_page_in_a_look_of_its_own(
    layer: Layer, parallel: KVParallelConfig
) -> None:
    source = configuration(layer, parallel)
    found = named(draw_layout(layer, source))
    ranks = range(parallel.num_ranks)
    assert set(found) == {f"{kind}-{rank}" for kind in ("rank", "page") for rank in ranks}
    of_rank: list[set[tuple[object, str | None]]] = [
        {looks(patch) for kind in ("rank", "page") for patch in found[f"{kind}-{rank}"]}
        for rank in ranks
    ]
    assert all(len(one) == 1 for one in of_rank)
    assert len({look for one in of_rank for look in one}) == len(of_rank)


@pytest.mark.parametrize(
    ("layer", "parallel"),
    [case for case in CASES if isinstance(case[0], AttentionLayer | LatentLayer)],
    ids=lambda value: type(value).__name__,
)
def test_every_rank_s_cells_cover_its_share(layer: Layer, parallel: KVParallelConfig) -> None:
    source = configuration(layer, parallel)
    found = named(draw_layout(layer, source))
    areas = [area(found[f"rank-{rank}"]) for rank in range(parallel.num_ranks)]
    in_all = sum(areas)
    blocks = [patch for name, patches in found.items() if name[:5] == "rank-" for patch in patches]
    if parallel.block_size == 16 and "split" not in str(layer):
        # One grid, with no shorter row: it is filled, and nothing lies on anything else.
        assert in_all == pytest.approx(outline(blocks))
    for mapping, drawn in zip(source.mappings, areas, strict=True):
        share = mapping.local_page_size_bytes / mapping.canonical_page_size_bytes
        # Replicas share the room of their bytes.
        assert drawn / in_all == pytest.approx(share / mapping.num_writers)


def test_writers_of_block_0_are_framed_in_black() -> None:
    source = configuration(attention(4), workers(8))
    figure = draw_layout(attention(4), source)
    children: list[Artist] = figure.get_children()
    frames = [
        patch
        for patch in children
        if isinstance(patch, Rectangle) and not patch.get_fill() and patch.get_linewidth() == 2.0
    ]
    pages = named(figure)
    corners = {round(frame.get_x(), 6) for frame in frames}
    assert corners == {round(_left(pages[f"page-{rank}"]), 6) for rank in (0, 2, 4, 6)}
    assert any("take turns to write" in text for text in texts(figure))
    assert "rank 3 writes\nblocks 1, 3, 5, ..." in texts(figure)


def _left(patches: list[Patch]) -> float:
    return min(patch.get_x() for patch in patches if isinstance(patch, Rectangle))


def test_the_title_says_the_configuration_and_the_cells_their_ranks() -> None:
    source = configuration(attention(4), workers(8, dcp=2, turn=4))
    found = texts(draw_layout(attention(4), source, element="float16"))
    assert found[0] == "tp 8, dcp 2, interleave 4"
    assert found[1].startswith("4 KV heads of 4 float16 (2 bytes); packed-nhd")
    assert {f"rank {rank}" for rank in range(8)} <= set(found)
    assert {"token", "head"} <= set(found)
    assert "K and V: bytes 0 to 2,047, 16 a token and head" in found


def test_copies_are_bands_as_high_as_their_bytes() -> None:
    layer = attention(8)
    source = configuration(layer, workers(2))
    to = target(layer, source, workers(8))
    found = named(draw_layout(layer, source, to))
    copies = {f"copy-{copy.source_rank}-{copy.target_rank}" for copy in to.copies}
    assert {name for name in found if name.startswith("copy-")} == copies
    assert len(copies) == 8
    for source_rank, target_rank in ((0, 0), (0, 3), (1, 7)):
        (band,) = found[f"copy-{source_rank}-{target_rank}"]
        (page,) = found[f"to-{target_rank}"]
        assert isinstance(page, Rectangle)
        ends = points(band)
        assert max(x for x, _ in ends) == pytest.approx(page.get_x())
        right = [y for x, y in ends if x == pytest.approx(page.get_x())]
        assert max(right) - min(right) == pytest.approx(page.get_height())
    heights = [area(found[f"{side}-{rank}"]) for side, rank in (("from", 0), ("to", 0))]
    assert heights[0] == pytest.approx(4 * heights[1])


def test_replicas_that_are_not_read_are_pale() -> None:
    layer = attention(2)
    source = configuration(layer, workers(4))
    figure = draw_layout(layer, source, target(layer, source, workers(1)))
    found = named(figure)
    pale = [rank for rank in range(4) if found[f"from-{rank}"][0].get_alpha() == 0.3]
    assert pale == [1, 3]
    assert texts(figure).count("not read") == 2
    assert any("which is read depends" in text for text in texts(figure))


def test_a_band_of_a_page_that_is_read_in_part_leaves_the_rest() -> None:
    """Two replicas share the work: of each page only half is read."""
    layer = attention(1)
    source = configuration(layer, workers(2))
    to = target(layer, source, workers(2, dcp=2, block=8))
    found = named(draw_layout(layer, source, to))
    assert {name for name in found if name.startswith("copy-")} == {"copy-0-0", "copy-1-1"}
    (band,) = found["copy-0-0"]
    (page,) = found["from-0"]
    assert isinstance(page, Rectangle)
    right = page.get_x() + page.get_width()
    heights = [y for x, y in points(band) if x == pytest.approx(right)]
    assert max(heights) - min(heights) == pytest.approx(page.get_height() / 2)


def test_what_is_not_drawn_is_counted() -> None:
    layer = attention(40)
    parallel = workers(40, block=100)
    source = configuration(layer, parallel)
    figure = draw_layout(layer, source)
    assert {"... 8 more ranks", "... 36 more rows"} <= set(texts(figure))
    assert "page-31" in named(figure)
    assert "page-32" not in named(figure)
    figure = draw_layout(layer, source, target(layer, source, workers(1, block=100)))
    assert "8 more ranks not drawn" in texts(figure)


def test_one_worker_alone() -> None:
    source = configuration(attention(4), workers(4))
    alone = Configuration(source.parallel, source.mappings, range(2, 3))
    found = named(draw_layout(attention(4), alone))
    assert set(found) == {"rank-2", "page-2"}


def test_nothing_is_drawn_past_the_edges() -> None:
    for layer, parallel in CASES:
        source = configuration(layer, parallel)
        figure = draw_layout(layer, source)
        width, height = figure.get_size_inches()
        for patches in named(figure).values():
            for patch in patches:
                assert isinstance(patch, Rectangle)
                assert 0 <= patch.get_x() <= patch.get_x() + patch.get_width() <= width
                assert 0 <= patch.get_y() <= patch.get_y() + patch.get_height() <= height


class TestFiles:
    def test_svg_keeps_the_names_and_png_is_one(self) -> None:
        layer = attention(4)
        figure = draw_layout(layer, configuration(layer, workers(2)))
        svg = render(figure, "svg").decode()
        assert set(re.findall(r'id="((?:rank|page)-\d)"', svg)) == set(named(figure))
        assert render(figure, "png").startswith(b"\x89PNG\r\n")

    def test_the_same_bytes_whatever_the_reader_s_settings(self) -> None:
        layer = LATENT

        def drawn() -> list[bytes]:
            source = configuration(layer, workers(16, dcp=2))
            figure = draw_layout(layer, source, target(layer, source, workers(1, block=32)))
            return [render(figure, "svg"), render(figure, "png")]

        plain = drawn()
        with rc_context(
            {"hatch.linewidth": 3.0, "svg.fonttype": "none", "font.family": "monospace"}
        ):
            assert drawn() == plain

    @pytest.mark.parametrize("name", ["layout.png", "layout.SVG"])
    def test_the_command_draws_it(self, capsys: Output, tmp_path: Path, name: str) -> None:
        file = tmp_path / name
        assert run(["layout", "--tp", "8", "--to", "tp=2", "--plot", str(file)]) == 0
        assert "copies of block 0" in capsys.readouterr().out
        head = file.read_bytes()[:200]
        assert head.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        assert list(tmp_path.iterdir()) == [file]

    def test_what_cannot_be_written_is_found_before_any_work(
        self, capsys: Output, tmp_path: Path
    ) -> None:
        target_ = tmp_path / "nowhere" / "layout.png"
        assert run(["layout", "--plot", str(target_)]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == (
            "",
            f"kvoffload: error: --plot {target_}: not a file in an existing directory\n",
        )

    def test_the_picture_of_the_documentation_is_that_of_the_command(self, tmp_path: Path) -> None:
        page = Path(__file__).resolve().parents[1] / "docs" / "canonical-pages.md"
        (command,) = re.findall(
            r"^kvoffload (layout .*) --plot docs/(\S+)$", page.read_text("utf-8"), re.M
        )
        file = tmp_path / command[1]
        assert run([*command[0].split(), "--plot", str(file)]) == 0
        pictures = [file.read_text("utf-8"), (page.parent / command[1]).read_text("utf-8")]
        # matplotlib's numbers may change with its version, what is drawn may not.
        names = [
            sorted(re.findall(r'id="((?:rank|copy|from|to)-[-0-9]+)"', text)) for text in pictures
        ]
        assert names[0] == names[1]
        assert len(names[0]) > 8
