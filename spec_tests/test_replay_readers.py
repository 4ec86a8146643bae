"""Traces: units, blocks, detection, compression, and what becomes of bad lines."""

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.replay import (
    SAMPLE,
    ChatTurn,
    CsvLayout,
    Trace,
    TraceFormat,
    TraceRequest,
    survey,
)

MOONCAKE = {"timestamp": 3000, "input_length": 1300, "output_length": 7, "hash_ids": [4, 9, 2]}
BAILIAN = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 40,
    "output_length": 132,
    "type": "text",
    "turn": 2,
    "hash_ids": [7, 8, 9],
}


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    path.write_text(
        "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), "utf-8"
    )
    return path


def read(trace: Trace) -> list[TraceRequest]:
    with trace.open() as reading:
        return list(reading)


def read_skipping(path: Path, trace_format: TraceFormat | None = None) -> tuple[int, int]:
    """How many requests there are and how many lines were left out."""
    with Trace(path, trace_format, skip_bad=True).open() as reading:
        return len(list(reading)), reading.skipped


class TestMooncake:
    def test_milliseconds_and_blocks_of_512(self, tmp_path: Path) -> None:
        trace = Trace(write_lines(tmp_path / "t.jsonl", [MOONCAKE]))
        assert trace.format is TraceFormat.MOONCAKE
        assert read(trace) == [TraceRequest(3.0, [4, 9, 2], 512, 1300, 7, None)]

    def test_the_last_block_is_partial(self) -> None:
        request = TraceRequest(0.0, [4, 9, 2], 512, 1300, 7)
        assert [request.tokens_in(n) for n in range(4)] == [0, 512, 1024, 1300]
        assert list(request.block_ends()) == [512, 1024, 1300]

    def test_full_blocks_end_at_multiples(self) -> None:
        assert list(TraceRequest(0.0, [4, 9], 512, 1024, 7).block_ends()) == [512, 1024]
        assert list(TraceRequest(0.0, [], 512, 0, 7).block_ends()) == []

    def test_fewer_ids_than_blocks_leave_tokens_uncached(self) -> None:
        request = TraceRequest(0.0, [4, 9], 512, 2000, 7)
        assert request.tokens_in(2) == 1024
        assert list(request.block_ends()) == [512, 1024]

    def test_blank_lines_are_no_lines(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", ["", MOONCAKE, "   ", MOONCAKE])
        assert len(read(Trace(path))) == 2

    def test_limit_keeps_the_first(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE | {"timestamp": t} for t in range(9)])
        assert [r.arrival for r in read(Trace(path, limit=2))] == [0.0, 0.001]
        assert survey(Trace(path, limit=2)).requests == 2


class TestBailian:
    def test_seconds_blocks_of_16_and_conversations(self, tmp_path: Path) -> None:
        root = BAILIAN | {"parent_chat_id": -1, "turn": 1}
        trace = Trace(write_lines(tmp_path / "t.jsonl", [BAILIAN, root]))
        assert trace.format is TraceFormat.BAILIAN
        first, second = read(trace)
        assert first == TraceRequest(61.114, [0, 1, 2], 16, 40, 132, ChatTurn(159, 55, 2, "text"))
        assert second.chat == ChatTurn(159, None, 1, "text")

    def test_an_id_after_another_prefix_is_another_block(self, tmp_path: Path) -> None:
        prompts = [[7, 8, 9], [7, 8, 1], [8, 9], [7, 7]]
        path = write_lines(tmp_path / "t.jsonl", [BAILIAN | {"hash_ids": ids} for ids in prompts])
        first, second, third, fourth = (list(r.blocks) for r in read(Trace(path)))
        assert second[:2] == first[:2]
        assert second[2] not in first
        assert not set(third) & set(first)
        assert fourth[0] == first[0]
        assert fourth[1] not in {*first, *third}

    def test_a_prefix_is_numbered_the_same_in_every_pass(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [BAILIAN, BAILIAN | {"hash_ids": [3, 8]}])
        trace = Trace(path)
        assert read(trace) == read(trace)


class TestDetection:
    def test_other_fields_are_no_format(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [{"prompt": "hello"}])
        with pytest.raises(TraceError, match=r"t\.jsonl:1: neither.*--format"):
            Trace(path)

    def test_a_byte_order_mark_is_part_of_no_line(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        for fields in (MOONCAKE, BAILIAN):
            path.write_text(json.dumps(fields), "utf-8-sig")
            marked = read(Trace(path))
            path.write_text(json.dumps(fields), "utf-8")
            assert marked == read(Trace(path))
        path.write_text("time,id\n1,a\n", "utf-8-sig")
        assert [request.arrival for request in read(Trace(path, TraceFormat.CSV))] == [1.0]
        path.write_text("1,a\n2,a\n", "utf-8-sig")
        assert [request.arrival for request in read(Trace(path, TraceFormat.CSV))] == [1.0, 2.0]

    def test_a_limit_beyond_all_counting_is_none(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE, MOONCAKE])
        assert len(read(Trace(path, limit=10**20))) == 2

    def test_binary_is_no_jsonl(self, tmp_path: Path) -> None:
        path = tmp_path / "t.bin"
        path.write_bytes(struct.pack("<IQIq", 1, 2, 3, 4) * 10)
        with pytest.raises(TraceError, match=r"t\.bin:1: "):
            Trace(path)

    def test_bad_lines_before_the_first_request_can_be_skipped(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", ["# made by hand", BAILIAN])
        assert Trace(path, skip_bad=True).format is TraceFormat.BAILIAN
        assert read_skipping(path) == (1, 1)

    def test_a_file_without_requests_is_refused(self, tmp_path: Path) -> None:
        for name, lines in (("empty", []), ("bad", ["nothing", "here"])):
            path = write_lines(tmp_path / name, lines)
            with pytest.raises(TraceError, match="no request found"):
                Trace(path, skip_bad=True)

    def test_a_named_format_is_not_detected(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE])
        with pytest.raises(TraceError, match=r"t\.jsonl:1: .*chat_id"):
            read(Trace(path, TraceFormat.BAILIAN))

    def test_lines_of_the_other_format_are_bad(self, tmp_path: Path) -> None:
        """Their timestamps have another unit; reading them would be a guess."""
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE, BAILIAN])
        with pytest.raises(TraceError, match=r"t\.jsonl:2: a Qwen-Bailian request"):
            read(Trace(path))
        path = write_lines(tmp_path / "u.jsonl", [BAILIAN, MOONCAKE])
        with pytest.raises(TraceError, match=r"u\.jsonl:2: "):
            read(Trace(path))


BAD_MOONCAKE: dict[str, object] = {
    "not json": "{",
    "no object": "[1, 2]",
    "field missing": {"timestamp": 1, "hash_ids": []},
    "timestamp is text": MOONCAKE | {"timestamp": "1"},
    "timestamp is a bool": MOONCAKE | {"timestamp": True},
    "negative timestamp": MOONCAKE | {"timestamp": -1},
    "infinite timestamp": '{"timestamp": 1e999, "input_length": 1, "output_length": 1, '
    '"hash_ids": [1]}',
    "negative tokens": MOONCAKE | {"input_length": -1, "hash_ids": []},
    "negative output": MOONCAKE | {"output_length": -1},
    "more tokens than can be": MOONCAKE | {"input_length": 2**53 + 1},
    "more output than can be": MOONCAKE | {"output_length": 10**400},
    "later than can be": MOONCAKE | {"timestamp": 1e17},
    "fractional tokens": MOONCAKE | {"input_length": 1300.5},
    "negative id": MOONCAKE | {"hash_ids": [1, -2, 3]},
    "id too large": MOONCAKE | {"hash_ids": [1, 2**64, 3]},
    "id is null": MOONCAKE | {"hash_ids": [1, None]},
    "more ids than tokens": MOONCAKE | {"hash_ids": [1, 2, 3, 4]},
}


class TestBadLines:
    @pytest.mark.parametrize("name", BAD_MOONCAKE)
    def test_stop_with_file_and_line(self, tmp_path: Path, name: str) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE, "", BAD_MOONCAKE[name], MOONCAKE])
        with pytest.raises(TraceError, match=r"t\.jsonl:3: ."):
            survey(Trace(path))

    def test_or_are_counted(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE, *BAD_MOONCAKE.values(), MOONCAKE])
        assert read_skipping(path) == (2, len(BAD_MOONCAKE))
        found = survey(Trace(path, skip_bad=True))
        assert (found.requests, found.skipped_lines) == (2, len(BAD_MOONCAKE))

    def test_the_largest_id_is_fine(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE | {"hash_ids": [2**64 - 1]}])
        assert read(Trace(path))[0].blocks == [2**64 - 1]

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE])
        with path.open("ab") as file:
            file.write(b'{"timestamp": "\xff\xfe"}\n')
        with pytest.raises(TraceError, match=r"t\.jsonl:2: "):
            read(Trace(path))

    def test_json_that_ends_early_is_called_that(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        whole = json.dumps(MOONCAKE)
        path.write_text(f"{whole}\n{whole[:-9]}\n", "utf-8")
        words = r"t\.jsonl:2: the JSON of this line cannot be read: .*--skip-bad-lines leaves"
        with pytest.raises(TraceError, match=words):
            survey(Trace(path))
        path.write_text(f"{whole[:-9]}\n{whole}\n", "utf-8")
        with pytest.raises(TraceError, match=r"t\.jsonl:1: the JSON of this line .*--skip-bad"):
            Trace(path)

    def test_nothing_to_replay(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "t.jsonl", [MOONCAKE | {"hash_ids": []}])
        with pytest.raises(TraceError, match="nothing to replay"):
            survey(Trace(path))


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zst_frames(data: bytes) -> bytes:
    return zst(data[:70]) + zst(data[70:])


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zst,
    "zst in two frames": zst_frames,
}


class TestCompression:
    """What is compressed is told by the first bytes, not by the name."""

    lines = b"".join(
        json.dumps(MOONCAKE | {"timestamp": t, "hash_ids": [t * 7919 % 65521]}).encode() + b"\n"
        for t in range(20_000)
    )

    def whole(self, tmp_path: Path) -> list[TraceRequest]:
        path = tmp_path / "plain"
        path.write_bytes(self.lines)
        return read(Trace(path))

    @pytest.mark.parametrize("name", COMPRESSORS)
    def test_reads_as_if_plain(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "trace"
        path.write_bytes(COMPRESSORS[name](self.lines))
        requests = read(Trace(path))
        assert len(requests) == 20_000
        assert requests == self.whole(tmp_path)

    @pytest.mark.parametrize("name", COMPRESSORS)
    def test_a_cut_stream_stops_even_when_skipping(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "trace"
        data = COMPRESSORS[name](self.lines)
        path.write_bytes(data[: len(data) * 3 // 4])
        with pytest.raises(TraceError, match=r"trace:\d+: cannot read on"):
            read_skipping(path, TraceFormat.MOONCAKE)

    @pytest.mark.parametrize("name", COMPRESSORS)
    def test_a_damaged_stream_stops(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "trace"
        data = bytearray(COMPRESSORS[name](self.lines))
        middle = len(data) // 2
        data[middle : middle + 64] = b"\xa5" * 64
        path.write_bytes(bytes(data))
        with pytest.raises(TraceError, match="trace:"):
            read(Trace(path, TraceFormat.MOONCAKE))


class TestFiles:
    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match=r"missing: No such file"):
            Trace(tmp_path / "missing")

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="not a regular file"):
            Trace(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_cannot_be_read_twice(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(TraceError, match="read more than once"):
            survey(Trace(tmp_path / "pipe", TraceFormat.MOONCAKE))

    def test_the_packaged_sample_is_what_its_note_says(self) -> None:
        found = survey(Trace(SAMPLE))
        assert (found.requests, found.blocks, found.distinct_blocks) == (1000, 27305, 21514)
        note = (SAMPLE.parent / "NOTICE.md").read_text("utf-8")
        assert SAMPLE.name in note
        assert "Apache License 2.0" in note
        # A gzip header with a time would make every build of the file another one.
        assert SAMPLE.read_bytes()[4:8] == bytes(4)


class TestOracleGeneral:
    RECORDS = ((5, 2**64 - 1, 4096, 2), (6, 17, 1, -1), (9, 2**64 - 1, 4096, -1))

    def packed(self) -> bytes:
        return b"".join(struct.pack("<IQIq", *record) for record in self.RECORDS)

    def test_accesses_without_tokens(self, tmp_path: Path) -> None:
        path = tmp_path / "t.oracleGeneral"
        path.write_bytes(self.packed())
        trace = Trace(path, TraceFormat.ORACLE_GENERAL)
        assert read(trace) == [
            TraceRequest(5.0, (2**64 - 1,)),
            TraceRequest(6.0, (17,)),
            TraceRequest(9.0, (2**64 - 1,)),
        ]
        found = survey(trace)
        assert (found.block_tokens, found.tokens, found.distinct_blocks) == (None, None, 2)
        assert round(found.max_block_hit_ratio, 6) == 0.333333

    def test_compressed(self, tmp_path: Path) -> None:
        path = tmp_path / "t.oracleGeneral.zst"
        path.write_bytes(zst(self.packed() * 40_000))
        assert len(read(Trace(path, TraceFormat.ORACLE_GENERAL))) == 120_000

    def test_a_cut_record_is_bad(self, tmp_path: Path) -> None:
        path = tmp_path / "t"
        path.write_bytes(self.packed()[:-1])
        with pytest.raises(TraceError, match=r"t:record 3: 23 byte"):
            read(Trace(path, TraceFormat.ORACLE_GENERAL))
        assert read_skipping(path, TraceFormat.ORACLE_GENERAL) == (2, 1)


class TestCsv:
    def rows(
        self,
        tmp_path: Path,
        text: str,
        layout: CsvLayout | None = None,
        delimiter: str = ",",
    ) -> list[tuple[float, int]]:
        path = tmp_path / "t.csv"
        path.write_text(text, "utf-8")
        trace = Trace(path, TraceFormat.CSV, csv_layout=layout, csv_delimiter=delimiter)
        return [(request.arrival, request.blocks[0]) for request in read(trace)]

    def test_time_then_id_without_a_header(self, tmp_path: Path) -> None:
        assert self.rows(tmp_path, "1,a,9\n1.5,b,9\n2,a,9\n") == [(1.0, 0), (1.5, 1), (2.0, 0)]

    def test_columns_by_the_names_of_the_header(self, tmp_path: Path) -> None:
        text = "# obj_size, obj_id, clock_time\n9,x,1\n9,y,2\n"
        assert self.rows(tmp_path, text) == [(1.0, 0), (2.0, 1)]

    def test_columns_as_told(self, tmp_path: Path) -> None:
        layout = CsvLayout.parse("time-col=3,obj-id-col=1")
        assert self.rows(tmp_path, "what;ever;when\nx;9;1\ny;9;2\n", layout, ";") == [
            (1.0, 0),
            (2.0, 1),
        ]

    def test_quotes(self, tmp_path: Path) -> None:
        assert self.rows(tmp_path, '1,"a,b",9\n2,"a,b",9\n') == [(1.0, 0), (2.0, 0)]

    def test_an_unknown_header_is_not_guessed(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match=r"t\.csv:1: the header .*--csv-columns"):
            self.rows(tmp_path, "when,what\n1,a\n")

    @pytest.mark.parametrize("row", ["x,a", "-1,a", "nan,a", "1e17,a", "1", "1,", '1,"a'])
    def test_bad_rows(self, tmp_path: Path, row: str) -> None:
        with pytest.raises(TraceError, match=r"t\.csv:2: ."):
            self.rows(tmp_path, f"1,a\n{row}\n2,b\n")
        assert read_skipping(tmp_path / "t.csv", TraceFormat.CSV) == (2, 1)

    @pytest.mark.parametrize(
        "text", ["", "1,2", "time-col=1", "time-col=0,obj-id-col=1", "time-col=1,obj-id-col=x"]
    )
    def test_bad_columns(self, text: str) -> None:
        with pytest.raises(InvalidValueError, match="csv columns"):
            CsvLayout.parse(text)

    @pytest.mark.parametrize("delimiter", ["", ",,", '"'])
    def test_bad_delimiters(self, tmp_path: Path, delimiter: str) -> None:
        with pytest.raises(InvalidValueError, match="delimiter"):
            self.rows(tmp_path, "1,a\n", None, delimiter)


prompts = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=5), min_size=1, max_size=8).filter(
    any
)


@given(prompts, st.integers(1, 512))
def test_survey_agrees_with_counting_by_hand(
    tmp_path_factory: pytest.TempPathFactory, ids: list[list[int]], last: int
) -> None:
    """The infinite cache: an access hits if the block was accessed before."""
    lines = [
        MOONCAKE | {"hash_ids": prompt, "input_length": max(0, 512 * (len(prompt) - 1) + last)}
        for prompt in ids
        if prompt
    ]
    path = write_lines(tmp_path_factory.mktemp("survey") / "t.jsonl", lines)
    accesses = [block for prompt in ids for block in prompt]
    hits = sum(block in accesses[:at] for at, block in enumerate(accesses))
    found = survey(Trace(path))
    assert round(found.max_block_hit_ratio * len(accesses)) == hits
    assert found.blocks == len(accesses)
    assert found.tokens == sum(512 * (len(prompt) - 1) + last for prompt in ids if prompt)
