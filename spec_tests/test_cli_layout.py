"""`kvoffload layout`: the table, the strip, the copies, JSON, and what cannot be asked."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvoffload import (
    AttentionLayer,
    Encoding,
    KVParallelConfig,
    LatentLayer,
    Resharding,
    derive_mappings,
    layout_id,
)
from kvoffload.cli import run
from kvoffload.cli.described import element_size
from spec_tests.cli_helpers import Output

SMALL = ["--heads", "4", "--head-size", "1", "--dtype", "int8", "--block-size", "4"]
STRIP = re.compile(r"^(?:tokens?|heads?|pages?) \d+(?:-\d+)? +(\S+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def shown(capsys: Output, *arguments: str) -> str:
    assert run(["layout", *arguments]) == 0
    return capsys.readouterr().out


def written(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert run(["layout", *arguments, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: Output, *arguments: str) -> str:
    assert run(["layout", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvoffload: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("kvoffload: error: ").rstrip()


class TestTable:
    def test_a_row_for_each_worker(self, capsys: Output) -> None:
        out = shown(capsys, *SMALL, "--tp", "2")
        assert "4 KV heads of 1 int8 (1 byte); packed-nhd: K and V side by side" in out
        assert "32 bytes canonical, 16 bytes a worker" in out
        rows = re.findall(r"^ +(\d) +(\d) +(\d) +(\S+) +(\S+) +(\d of \d) +(0 .*?) *$", out, re.M)
        assert rows == [
            ("0", "0", "0", "0-1", "0-3", "1 of 1", "0 -> 0: 4 x 4 bytes, every 4 -> every 8"),
            ("1", "1", "0", "2-3", "0-3", "1 of 1", "0 -> 4: 4 x 4 bytes, every 4 -> every 8"),
        ]

    def test_the_layout_has_its_id_and_what_it_is_made_of(self, capsys: Output) -> None:
        layer = AttentionLayer(
            total_kv_heads=4, head_size=1, element_size_bytes=1, encoding=Encoding.PACKED_NHD
        )
        identity = layout_id(layer, KVParallelConfig(tp_size=2, block_size=4))
        out = shown(capsys, *SMALL, "--tp", "2")
        assert identity.digest in out
        assert "; ".join(f"{name}: {value}" for name, value in identity.fields) in out

    def test_without_options_it_is_one_worker(self, capsys: Output) -> None:
        out = shown(capsys)
        assert "tp 1: 1 rank\n" in re.sub(" +\n", "\n", out)
        assert "0 -> 0: 65,536 bytes" in out

    def test_tokens_of_context_parallel_workers(self, capsys: Output) -> None:
        out = shown(capsys, "--tp", "8", "--heads", "4", "--dcp", "2", "--interleave", "4")
        assert "tp 8, dcp 2, interleave 4: 8 ranks" in out
        assert "32 tokens (block_size 16 x dcp 2 x pcp 1)" in out
        assert "0-3, 8-11 .. 24-27" in out
        assert "4-7, 12-15 .. 28-31" in out

    def test_writers_and_their_turns(self, capsys: Output) -> None:
        out = shown(capsys, "--tp", "8", "--heads", "4")
        rows = re.findall(r"^ +\d +\d +0 +(\d) +0-15 +(\d) of 2 ", out, re.M)
        assert rows == [(str(head), str(turn)) for head in range(4) for turn in (1, 2)]
        assert "  blocks 0, 2, 4, ... by ranks 0,2,4,6\n" in out
        assert "  blocks 1, 3, 5, ... by ranks 1,3,5,7\n" in out
        assert "take turns" not in shown(capsys, "--tp", "8")

    def test_latent_rows_with_a_second_cache(self, capsys: Output) -> None:
        out = shown(capsys, "--mla", "576", "--dtype", "float8_e4m3fn", "--second", "132")
        assert "one latent row a token (MLA): 576 float8_e4m3fn (1 byte), then 132 bytes" in out
        assert f"{16 * (576 + 132):,} bytes canonical" in out

    def test_opaque_pages_and_padding(self, capsys: Output) -> None:
        out = shown(capsys, "--opaque", "4096", "--padded", "5000", "--tp", "2")
        assert "8,192 bytes canonical, 4,096 bytes a worker (and 904 bytes of padding)" in out
        assert "0 -> 4,096: 4,096 bytes" in out

    def test_one_rank_only(self, capsys: Output) -> None:
        out = shown(capsys, *SMALL, "--tp", "4", "--rank", "2")
        assert len(re.findall(r"\d of \d", out)) == 1
        (strip,) = STRIP.findall(out)
        assert set(strip) == {".", "2"}
        found = written(capsys, *SMALL, "--tp", "4", "--rank", "2", "--to", "tp=1")
        assert [rank["rank"] for rank in found["ranks"]] == [2]
        assert [copy["source_rank"] for copy in found["to"]["copies"]] == [2]

    def test_what_is_long_is_shortened_and_counted(self, capsys: Output) -> None:
        options = ["--tp", "16", "--heads", "16", "--pcp", "2", "--encoding", "split-nhd"]
        options += ["--to", "tp=16,pcp=1,block-size=32"]
        out = shown(capsys, *options)
        assert "... 24 more ranks; --all-runs shows all\n" in out
        assert re.search(r"^\.\.\. \d+ more copies; --all-runs shows all$", out, re.M)
        assert "... 24 more rows\n" in out
        assert "... " not in shown(capsys, *options, "--all-runs")
        options = ["--tp", "8", "--heads", "4", "--dcp", "2", "--interleave", "4"]
        options += ["--encoding", "split-nhd"]
        assert shown(capsys, *options).count("... 4 more runs") == 8
        assert "... " not in shown(capsys, *options, "--all-runs")

    @pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
    @pytest.mark.parametrize(
        "options",
        [
            ["--tp", "8", "--heads", "4", "--to", "tp=2"],
            ["--tp", "8", "--heads", "4", "--dcp", "2", "--encoding", "split-hnd"],
            ["--mla", "576", "--tp", "8", "--dcp", "2"],
        ],
        ids=["replicas", "split", "latent"],
    )
    def test_fits_the_terminal(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch, width: int, options: list[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        out = shown(capsys, *options)
        assert "…" not in out
        tables = [line for line in out.splitlines() if line.startswith(" ") or STRIP.match(line)]
        assert max(map(len, tables)) <= width


class TestStrip:
    def test_token_major(self, capsys: Output) -> None:
        (strip,) = STRIP.findall(shown(capsys, *SMALL, "--tp", "4"))
        assert re.fullmatch("(0+)(1+)(2+)(3+)", strip)
        assert len({strip.count(each) for each in "0123"}) == 1

    def test_head_major(self, capsys: Output) -> None:
        out = shown(capsys, *SMALL, "--tp", "4", "--encoding", "packed-hnd")
        strips = STRIP.findall(out)
        assert [set(strip) for strip in strips] == [{"0"}, {"1"}, {"2"}, {"3"}]

    def test_split_halves_follow_each_other(self, capsys: Output) -> None:
        out = shown(capsys, *SMALL, "--tp", "2", "--encoding", "split-nhd")
        assert "canonical page, K: bytes 0 to 15, 1 a token and head" in out
        assert "canonical page, V: bytes 16 to 31, 1 a token and head" in out
        assert len(STRIP.findall(out)) == 2

    def test_replicas_take_turns_on_it(self, capsys: Output) -> None:
        (strip,) = STRIP.findall(shown(capsys, *SMALL, "--tp", "8"))
        assert re.fullmatch("(01)+0?(23)+2?(45)+4?(67)+6?", strip)

    def test_reads_without_colour_and_is_the_same_with_it(self) -> None:
        texts: list[str] = []
        for colours in ({"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "COLORTERM": "truecolor"}):
            environment = {"COLUMNS": "100", "TERM": "xterm-256color", **colours}
            done = subprocess.run(
                [sys.executable, "-m", "kvoffload", "layout", "--tp", "4"],
                env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **environment},
                capture_output=True,
                text=True,
                check=True,
            )
            texts.append(done.stdout)
        plain, coloured = texts
        assert "\x1b" not in plain
        backgrounds = re.findall(r"48;2;(\d+;\d+;\d+)m", coloured)
        assert len(set(backgrounds)) == 4
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain

    def test_ranks_beyond_nine_have_letters_and_beyond_those_a_sign(self, capsys: Output) -> None:
        out = shown(capsys, "--heads", "64", "--tp", "64")
        (strip,) = STRIP.findall(out)
        assert strip.startswith("0")
        assert strip.endswith("XYZ##")
        assert "(a is rank 10, A is rank 36, # is any rank from 62 on)\n" in out

    def test_a_row_that_is_too_long_is_cut_so_that_no_rank_is_hidden(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        strips = STRIP.findall(shown(capsys, "--heads", "60", "--tp", "60"))
        assert len(strips) == 3
        assert len(set("".join(strips))) == 60

    def test_and_if_that_takes_too_many_lines_it_says_what_it_hides(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        options = ["--heads", "96", "--tp", "96"]
        assert "(* is kept by several ranks, by each a part)" in shown(capsys, *options)
        assert "(* is kept" not in shown(capsys, *options, "--all-runs")

    def test_the_one_of_the_documentation(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "100")
        page = Path(__file__).resolve().parents[1] / "docs" / "canonical-pages.md"
        ((command, expected),) = re.findall(
            r"^```\n\$ kvoffload ([^\n]*)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        )
        assert run(command.split()) == 0
        out = capsys.readouterr().out
        assert re.sub(" +$", "", out, flags=re.M) == expected


class TestCopies:
    def test_from_page_to_page(self, capsys: Output) -> None:
        out = shown(capsys, *SMALL, "--tp", "2", "--to", "tp=4")
        assert "copies of block 0 from page to page: 4, 32 bytes in all\n" in out
        assert re.findall(r"^ +(\d) +(\d) +8  (.*?) *$", out, re.M) == [
            ("0", "0", "0 -> 0: 4 x 2 bytes, every 4 -> every 2"),
            ("0", "1", "2 -> 0: 4 x 2 bytes, every 4 -> every 2"),
            ("1", "2", "0 -> 0: 4 x 2 bytes, every 4 -> every 2"),
            ("1", "3", "2 -> 0: 4 x 2 bytes, every 4 -> every 2"),
        ]
        assert "to: tp 4\n" in out
        assert len(STRIP.findall(out)) == 2

    def test_the_block_decides_whose_replica_is_read(self, capsys: Output) -> None:
        options = ["--tp", "8", "--heads", "4", "--to", "tp=1"]
        for block, ranks in (("0", [0, 2, 4, 6]), ("1", [1, 3, 5, 7])):
            found = written(capsys, *options, "--block", block)["to"]
            assert found["block_id"] == int(block)
            assert [copy["source_rank"] for copy in found["copies"]] == ranks

    def test_a_span_has_to_stay_what_it_is(self, capsys: Output) -> None:
        options = ["--heads", "2", "--tp", "4", "--to", "tp=4,dcp=2"]
        assert refused(capsys, *options) == (
            "--to tp=4,dcp=2: its canonical page spans block-size 16 x dcp 2 x pcp 1 = 32 tokens, "
            "the other one's block-size 16 x dcp 1 x pcp 1 = 16; block-size=8 would fit"
        )
        options[-1] += ",block-size=8"
        assert "to: tp 4, dcp 2, interleave 1\n" in shown(capsys, *options)

    @pytest.mark.parametrize("text", ["tp", "tp=", "tp=x", "tp=-1", "pp=2", "", "tp=2,", "tp=2=2"])
    def test_what_is_no_override(self, capsys: Output, text: str) -> None:
        message = refused(capsys, "--to", text)
        assert "is not one of tp=N, dcp=N, pcp=N, interleave=N, block-size=N" in message

    def test_overrides_that_cannot_be(self, capsys: Output) -> None:
        assert "tp twice" in refused(capsys, "--to", "tp=2,tp=4")
        assert "tp_size must be an int >= 1" in refused(capsys, "--to", "tp=0")
        message = refused(capsys, "--heads", "4", "--to", "tp=3")
        assert "4 % 3 = 1, 3 % 4 = 3" in message

    def test_opaque_pages_go_nowhere_else(self, capsys: Output) -> None:
        message = refused(capsys, "--opaque", "64", "--tp", "2", "--to", "tp=1")
        assert "canonical page" in message


class TestJson:
    def test_everything_that_was_derived(self, capsys: Output) -> None:
        layer = LatentLayer(row_elements=3, element_size_bytes=2, second_row_bytes=5)
        source = KVParallelConfig(tp_size=4, dcp_size=2, interleave=2, block_size=4)
        target = KVParallelConfig(tp_size=2, block_size=8)
        mappings = derive_mappings(layer, source)
        other = derive_mappings(layer, target)
        options = ["--mla", "3", "--second", "5", "--tp", "4", "--dcp", "2", "--interleave", "2"]
        options += ["--block-size", "4", "--to", "tp=2,dcp=1,block-size=8"]
        found = written(capsys, *options)
        assert list(found) == [
            "layer",
            "parallel",
            "layout_id",
            "canonical_page_size_bytes",
            "ranks",
            "to",
        ]
        assert found["layer"] == {
            "kind": "latent",
            "row_elements": 3,
            "element_size_bytes": 2,
            "second_row_bytes": 5,
            "padded_page_size_bytes": None,
        }
        assert found["parallel"] == {
            "tp_size": 4,
            "dcp_size": 2,
            "pcp_size": 1,
            "interleave": 2,
            "block_size": 4,
            "num_ranks": 4,
            "span": 8,
        }
        identity = layout_id(layer, source)
        assert found["layout_id"]["digest"] == identity.digest
        assert list(found["layout_id"]["fields"].items()) == list(identity.fields)
        assert found["canonical_page_size_bytes"] == 8 * 11
        for ranks, expected, parallel in (
            (found["ranks"], mappings, source),
            (found["to"]["ranks"], other, target),
        ):
            assert [rank["rank"] for rank in ranks] == list(range(len(expected)))
            for rank, mapping in zip(ranks, expected, strict=True):
                worker = parallel.at(rank["rank"])
                assert (rank["tp_rank"], rank["cp_rank"]) == (worker.tp_rank, worker.cp_rank)
                assert rank["num_writers"] == mapping.num_writers
                assert rank["writer_index"] == mapping.writer_index
                assert rank["local_page_size_bytes"] == mapping.local_page_size_bytes
                assert [tuple(run.values()) for run in rank["runs"]] == [
                    (
                        run.local_offset,
                        run.canonical_offset,
                        run.fragment_size,
                        run.num_fragments,
                        run.local_stride,
                        run.canonical_stride,
                    )
                    for run in mapping.runs
                ]
        copies = Resharding(mappings, other).copies(0)
        assert found["to"]["parallel"]["tp_size"] == 2
        assert [
            (copy["source_rank"], copy["target_rank"], copy["num_bytes"], len(copy["runs"]))
            for copy in found["to"]["copies"]
        ] == [
            (copy.source_rank, copy.target_rank, copy.num_bytes, len(copy.runs)) for copy in copies
        ]
        assert [tuple(run.values()) for run in found["to"]["copies"][0]["runs"]] == [
            tuple(run) for run in copies[0].runs
        ]

    def test_an_attention_layer_names_its_encoding(self, capsys: Output) -> None:
        found = written(capsys, "--encoding", "Split-HND", "--padded", "100000")
        assert found["layer"] == {
            "kind": "attention",
            "total_kv_heads": 8,
            "head_size": 128,
            "element_size_bytes": 2,
            "encoding": "split-hnd",
            "value_head_size": None,
            "padded_page_size_bytes": 100000,
        }
        assert "to" not in found

    def test_a_file(self, capsys: Output, tmp_path: Path) -> None:
        target = tmp_path / "layout.json"
        out = shown(capsys, "--tp", "2", "--json", str(target))
        assert "rank" in out
        assert len(json.loads(target.read_text("utf-8"))["ranks"]) == 2
        message = refused(capsys, "--json", str(tmp_path / "nowhere" / "layout.json"))
        assert "not a file in an existing directory" in message


class TestNarrowScreens:
    def test_what_counts_is_folded_and_not_cut(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        out = shown(capsys, "--tp", "4", "--to", "tp=2")
        assert "\u2026" not in out
        assert max(map(len, out.splitlines())) < 80
        monkeypatch.setenv("COLUMNS", "24")
        lines = shown(capsys).splitlines()
        assert "\u2026" not in "".join(lines)
        digest = layout_id(
            AttentionLayer(
                total_kv_heads=8,
                head_size=128,
                element_size_bytes=2,
                encoding=Encoding.PACKED_NHD,
            ),
            KVParallelConfig(block_size=16),
        ).digest
        assert digest in "".join(line.replace("layout", "").strip() for line in lines)

    def test_a_width_of_nothing_is_one_that_is_not_known(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "0")
        out = shown(capsys, "--tp", "2")
        monkeypatch.setenv("COLUMNS", "80")
        assert out == shown(capsys, "--tp", "2") != ""


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--heads", "6", "--tp", "4"], "neither of 6 KV heads and tp_size 4 divides"),
            (["--tp", "8", "--dcp", "2"], "dcp_size 2 does not divide the 1 workers"),
            (["--pcp", "2", "--interleave", "3"], "interleave 3 does not divide block_size 16"),
            (["--tp", "2", "--rank", "2"], "rank 2 is not below tp_size 2 x pcp_size 1 = 2"),
            (["--tp", "2", "--padded", "64"], "padded_page_size_bytes 64 < 32768 bytes"),
            (["--dtype", "int4"], "--dtype int4: elements smaller than a byte are not mapped"),
            (["--dtype", "float4_e2m1fn_x2"], "elements smaller than a byte are not mapped"),
            (["--dtype", "complex9"], "--dtype complex9: not one of float64,"),
            (["--mla", "576", "--heads", "8"], "--heads cannot be given with it"),
            (["--opaque", "8", "--dtype", "int8"], "--dtype cannot be given with it"),
            (["--second", "8"], "--second goes with --mla"),
            (["--plot", "layout.pdf"], "--plot layout.pdf: a picture is a .png or an .svg"),
            (["--tp", "0"], "Invalid value for '--tp'"),
            (["--encoding", "nhd"], "'nhd' is not one of"),
            (["--dtype", ""], "--dtype : not one of float64,"),
            (["--block", "3"], "--block goes with --to"),
            (["--tp", "8192"], "8,192 workers are too many to be shown, at most 4,096"),
            (["--tp", "2", "--to", "tp=8192"], "8,192 workers are too many to be shown"),
            (["--pcp", "1" + "0" * 30], "workers are too many to be shown"),
            (["--tp", "8", "--to", "tp=2,tp=4"], "--to tp=2,tp=4: tp twice"),
            (["--to", "tp=0"], "tp_size must be an int >= 1, got 0"),
            (["--block-size", "1" + "0" * 30], "canonical_page_size_bytes must be an int in"),
            (["--opaque", str(1 << 63)], "canonical_page_size_bytes must be an int in"),
            (
                ["--block-size", "1048576", "--tp", "8", "--pcp", "2", "--interleave", "2"],
                "524,288 runs in all, at most 262,144 are derived",
            ),
            (
                ["--block-size", "100000000", "--tp", "2", "--to", "tp=4"],
                "200,000,000 fragments, at most 4,194,304 are written out",
            ),
        ],
    )
    def test_with_the_arithmetic_and_in_one_line(
        self, capsys: Output, options: list[str], message: str
    ) -> None:
        assert message in refused(capsys, *options)

    def test_rows_without_end(self, capsys: Output, tmp_path: Path) -> None:
        options = ["--encoding", "packed-hnd", "--block-size", "100000000", "--tp", "2"]
        out = shown(capsys, *options)
        assert "(a row of 100,000,000 is too long to be shown)\n" in out
        message = refused(capsys, *options, "--plot", str(tmp_path / "a.png"))
        assert message.endswith("a.png: a row of 100,000,000 is too long to be drawn")

    def test_one_file_for_two_results(self, capsys: Output, tmp_path: Path) -> None:
        target = tmp_path / "a.png"
        beside = tmp_path / "there" / ".." / "a.png"
        (tmp_path / "there").mkdir()
        message = refused(capsys, "--plot", str(target), "--json", str(beside))
        assert message.endswith("are the same file")
        assert not target.exists()

    def test_a_picture_of_too_many_blocks(self, capsys: Output, tmp_path: Path) -> None:
        target = tmp_path / "a.png"
        options = ["--heads", "1024", "--tp", "1024", "--block-size", "64"]
        message = refused(capsys, *options, "--plot", str(target))
        assert message.endswith("a.png: 65,536 coloured blocks are too many to be drawn")
        assert not target.exists()

    def test_types_by_the_names_of_torch(self) -> None:
        names = ("torch.bfloat16", "Float32", "float8_e5m2", "fp8_e4m3", "uint8")
        assert list(map(element_size, names)) == [2, 4, 1, 1, 1]

    def test_a_reader_that_went_away(self) -> None:
        program = (
            "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 1); "
            "from kvoffload.cli import main; sys.argv = ['kvoffload', 'layout']; main()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_needs_neither_matplotlib_nor_torch_nor_hypothesis(self) -> None:
        program = (
            "import sys; names = ('matplotlib', 'torch', 'hypothesis', 'pytest'); "
            "sys.modules.update(dict.fromkeys(names)); from kvoffload.cli import run; "
            "sys.exit(run(['layout', '--tp', '2', '--to', 'tp=1']))"
        )
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    def test_a_picture_without_matplotlib_names_the_extra(self, tmp_path: Path) -> None:
        program = (
            "import sys; sys.modules['matplotlib'] = None; from kvoffload.cli import run; "
            f"sys.exit(run(['layout', '--plot', {str(tmp_path / 'a.svg')!r}]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stdout == ""
        needs = "--plot needs matplotlib: pip install 'kvoffload[plot]'"
        assert done.stderr == f"kvoffload: error: {needs}\n"
        assert list(tmp_path.iterdir()) == []

    def test_help_shows_the_command(self, capsys: Output) -> None:
        assert run(["layout", "--help"]) == 0
        assert "kvoffload layout --tp 8 --to tp=2 --plot layout.svg" in capsys.readouterr().out
