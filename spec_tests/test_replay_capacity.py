"""Capacities, sizes, the cost model, keys and the shape of a report."""

import json
from fractions import Fraction

import pytest

from kvoffload import get_offload_block_hash, get_offload_group_idx
from kvoffload.errors import InvalidValueError
from kvoffload.replay import (
    Capacity,
    CostModel,
    Counts,
    Judgement,
    KeyTable,
    Setting,
    Survey,
    default_chunk_bytes,
    make_report,
    parse_bytes,
    to_json,
)


class TestCapacity:
    @pytest.mark.parametrize(
        ("text", "chunks"),
        [
            ("0", 0),
            ("20000", 20_000),
            ("infinite", 1234),
            ("5%", 61),
            ("0.01%", 1),
            ("100%", 1234),
            ("250%", 3085),
            ("8MiB", 8),
            ("8.9 MiB", 8),
            ("1GB", 953),
            ("1048576B", 1),
        ],
    )
    def test_in_chunks(self, text: str, chunks: int) -> None:
        """Of a trace with 1,234 distinct blocks, chunks of 1 MiB."""
        assert Capacity.parse(text).resolve(1234, 2**20) == chunks

    @pytest.mark.parametrize(
        "text",
        # Digits are set apart in threes or not at all.
        [
            "",
            "x",
            "-5",
            "1.5",
            "5 %%",
            "5%B",
            "8 GX",
            "inf",
            "1e3",
            "0x10",
            "%",
            "MiB",
            "2,0",
            "20,0000",
            ",000",
            "1,000,",
            "1__000",
            "20000,000",
            "1,5GB",
        ],
    )
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidValueError, match="capacity must be a number of chunks"):
            Capacity.parse(text)

    def test_a_size_needs_the_size_of_a_chunk(self) -> None:
        with pytest.raises(InvalidValueError, match="with the bytes of a chunk"):
            Capacity.parse("8GiB").resolve(1234, None)

    def test_a_size_below_one_chunk_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="at least one chunk"):
            Capacity.parse("1KiB").resolve(1234, 1025)

    @pytest.mark.parametrize(
        ("text", "chunks"),
        [("20,000", 20_000), ("20_000", 20_000), ("1,234,567", 1_234_567), ("1,024B", 1_024)],
    )
    def test_digits_may_be_set_apart_in_threes(self, text: str, chunks: int) -> None:
        assert Capacity.parse(text).resolve(7, 1) == chunks

    @pytest.mark.parametrize(("text", "chunks"), [("0", 0), ("0%", 1), ("0.001%", 1)])
    def test_none_at_all_and_a_share_of_nothing(self, text: str, chunks: int) -> None:
        assert Capacity.parse(text).resolve(1_000, None) == chunks

    def test_shares_are_exact(self) -> None:
        """0.29 * 100 is 28.999999999999996 in floating point."""
        assert Capacity.parse("29%").resolve(100, None) == 29
        assert Capacity.parse("0.1%").share == Fraction(1, 1000)

    @pytest.mark.parametrize("text", ["", "x", "5%", "-1", "1TX"])
    def test_bytes_are_bytes(self, text: str) -> None:
        with pytest.raises(InvalidValueError, match="chunk-bytes"):
            parse_bytes("chunk-bytes", text)


class TestCostModel:
    def test_durations(self) -> None:
        model = CostModel(prefill_rate=100, transfer_rate=1000, chunk_bytes=50)
        assert model.prefill_seconds(250) == 2.5
        assert model.transfer_seconds(30) == 1.5

    def test_says_itself_in_one_line(self) -> None:
        text = CostModel(20_000, 25e9, 64 * 2**20).describe()
        assert "20,000 tokens/s" in text
        assert "64 MiB" in text
        assert "25 GB/s" in text
        assert "\n" not in text

    def test_chunks_are_as_large_as_their_tokens(self) -> None:
        assert default_chunk_bytes(512) == 64 * 2**20
        assert default_chunk_bytes(16) == default_chunk_bytes(None) == 2 * 2**20

    @pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
    def test_rates_are_positive(self, value: float) -> None:
        with pytest.raises(InvalidValueError, match="prefill_rate"):
            CostModel(prefill_rate=value)
        with pytest.raises(InvalidValueError, match="transfer_rate"):
            CostModel(transfer_rate=value)


def test_equal_blocks_have_equal_keys_in_every_run() -> None:
    first, second = KeyTable(), KeyTable()
    assert first[2**64 - 1] == second[2**64 - 1] != first[1]
    assert get_offload_block_hash(first[1]) == bytes(7) + b"\1"
    assert get_offload_group_idx(first[1]) == 0
    assert first[1] is first[1]


SETTING = Setting("lru", "CPUOffloadingManager", "5%", 10, "a model")


def survey_of(tokens: int | None) -> Survey:
    return Survey(2, 8, 5, None if tokens is None else 512, tokens, 9.0, 1)


class TestReport:
    def test_ratios(self) -> None:
        counts = Counts(requests=2, blocks=8, block_hits=1, tokens=3000, token_hits=512)
        report = make_report(
            SETTING, counts, survey_of(3000), Judgement(), seconds=2.0, reading_seconds=0.5
        )
        assert (report.block_hit_ratio, report.token_hit_ratio) == (0.125, 0.170667)
        assert (report.max_block_hit_ratio, report.blocks_per_second) == (0.375, 4.0)

    def test_unknown_is_null(self) -> None:
        report = make_report(
            SETTING,
            Counts(requests=8, blocks=8),
            survey_of(None),
            Judgement(),
            seconds=0.0,
            reading_seconds=0.0,
        )
        assert (report.requests, report.token_hit_ratio) == (None, None)
        assert report.blocks_per_second == 0

    def test_json_is_a_list_in_the_promised_order(self) -> None:
        report = make_report(
            SETTING,
            Counts(),
            survey_of(0),
            Judgement(9, 3, ("LOAD-3", "EVT-1", "LOAD-3")),
            seconds=1.0,
            reading_seconds=0.0,
        )
        (found,) = json.loads(to_json([report]))
        assert list(found)[:14] == [
            "policy",
            "capacity",
            "requests",
            "blocks",
            "block_hits",
            "block_hit_ratio",
            "token_hit_ratio",
            "max_block_hit_ratio",
            "evicted",
            "refused",
            "steps",
            "checks",
            "violations",
            "seconds",
        ]
        assert (found["checks"], found["violations"]) == (9, 3)
        assert found["violated_clauses"] == ["LOAD-3", "EVT-1"]
