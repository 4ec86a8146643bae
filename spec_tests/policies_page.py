"""The comparison in docs/policies.md: `python -m spec_tests.policies_page DIR` writes it anew, from
what `kvoffload compare --out DIR` left in a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import copyfile
from typing import Final

from kvoffload.judge.comparison import comparison_lines, from_json

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = DOCS / "policies.md"
DATA: Final = DOCS / "policies.json"
BEGIN: Final = "<!-- From here on written by spec_tests/policies_page.py. -->\n\n"
END: Final = "\n<!-- Up to here. -->\n"


def renewed(page: str, data: bytes) -> str:
    """The page with the comparison of such JSON in its place."""
    comparison = from_json(data)
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    pictures = {
        f"curves-{number}": f"policies-{number}.svg" for number in range(len(comparison.values))
    }
    tables = "\n".join(comparison_lines(comparison, pictures))
    return f"{before}{BEGIN}{tables}{END}{after}"


def main(folder: Path) -> None:
    """Take over the figures and pictures of the folder."""
    data = (folder / "report.json").read_bytes()
    DATA.write_bytes(data)
    for picture in folder.glob("curves-*.svg"):
        copyfile(picture, DOCS / picture.name.replace("curves", "policies"))
    PAGE.write_text(renewed(PAGE.read_text("utf-8"), data), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
