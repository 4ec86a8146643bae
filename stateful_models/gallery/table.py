"""The gallery as a page: `python -m stateful_models.gallery > docs/gallery.md`."""

from __future__ import annotations

from collections.abc import Iterator

from stateful_models.contract import CLAUSES
from stateful_models.gallery.managers import BREAKS, BUG_ROWS
from stateful_models.gallery.mappings import BROKEN_MAPPERS, LEGAL_MAPPERS
from stateful_models.gallery.oddities import ODDITIES
from stateful_models.gallery.policies import BROKEN_POLICIES, LEGAL_POLICIES
from stateful_models.gallery.public_reports import REPORTS
from stateful_models.gallery.workers import BROKEN_WORKERS, LEGAL_WORKERS

_HEAD = """# The gallery

What the kit is shown to catch, and to let go. This page is made from the classes themselves, by
`python -m stateful_models.gallery`; the tests hold it to them, convict every broken one of its own
mistake, and no legal one of anything.

Any of them can be tried by hand:

    kvoffload verify stateful_models.gallery.broken_policies.victims:Pol2PinnedVictim
    kvoffload verify --manager stateful_models.gallery.managers:Store7SlotTwice

With `--driver stateful_models.gallery.policies:GalleryDriver` a policy is held to what it wrongly
claims, and tried as the wrapper that it is. `--profile reference` convicts of what binds the
reference alone (POL-4, POL-5, demands of class R), and of what only a host that errs comes upon.

Page mappers are tried from Python: `stateful_models.pages.check_mapper(mapper)`, with one of
`stateful_models.gallery.mappings.BROKEN_MAPPERS`; workers by
`stateful_models.workers.check_worker(exhibit.make)`, with one of
`stateful_models.gallery.workers.BROKEN_WORKERS`.

The letter behind a clause is the class of the demand that is broken (`kvoffload explain` has them
in words).
"""


def page() -> str:
    """The page, in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## Broken policies"
    yield ""
    yield from _row("class", "breaks", "mistake", "the like of it was reported as")
    yield from _row(*["---"] * 4)
    for policy_cls, exhibit in BROKEN_POLICIES.items():
        part = CLAUSES[exhibit.clause].part(exhibit.kind)
        rows = ", ".join(REPORTS[row] for row in exhibit.bug_rows)
        yield from _row(
            f"`{policy_cls.__name__}`",
            f"{exhibit.clause} {part.kind.value}",
            exhibit.mistake,
            rows,
        )
    yield ""
    yield "## Legal oddities among policies"
    yield ""
    yield from _row("name", "what is unusual")
    yield from _row("---", "---")
    for name, legal in LEGAL_POLICIES.items():
        yield from _row(name, legal.oddity)
    yield ""
    yield "## Broken managers"
    yield ""
    yield from _row("class", "breaks", "mistake", "the like of it was reported as")
    yield from _row(*["---"] * 4)
    for manager_cls, clause in BREAKS.items():
        bugs = ", ".join(REPORTS[row] for row, cls in BUG_ROWS.items() if cls is manager_cls)
        yield from _row(f"`{manager_cls.__name__}`", clause, _first_line(manager_cls), bugs)
    yield ""
    yield "## Legal oddities among managers"
    yield ""
    yield from _row("class", "what is unusual")
    yield from _row("---", "---")
    for odd_cls in ODDITIES:
        yield from _row(f"`{odd_cls.__name__}`", _first_line(odd_cls))
    yield ""
    yield "## Broken page mappers"
    yield ""
    yield from _row("name", "breaks", "mistake", "the like of it was reported as")
    yield from _row(*["---"] * 4)
    for name, broken in BROKEN_MAPPERS.items():
        part = CLAUSES[broken.clause].part(broken.kind)
        rows = ", ".join(REPORTS[row] for row in broken.bug_rows)
        yield from _row(f"`{name}`", f"{broken.clause} {part.kind.value}", broken.mistake, rows)
    yield ""
    yield "## Legal oddities among page mappers"
    yield ""
    yield from _row("name", "what is unusual", "what the reference is held to")
    yield from _row("---", "---", "---")
    for name, odd in LEGAL_MAPPERS.items():
        yield from _row(name, odd.oddity, ", ".join(odd.reported))
    yield ""
    yield from _workers()


def _workers() -> Iterator[str]:
    yield "## Broken workers"
    yield ""
    yield from _row("name", "breaks", "mistake", "the like of it was reported as")
    yield from _row(*["---"] * 4)
    for name, broken in BROKEN_WORKERS.items():
        part = CLAUSES[broken.clause].part(None)
        rows = ", ".join(REPORTS[row] for row in broken.bug_rows)
        yield from _row(f"`{name}`", f"{broken.clause} {part.kind.value}", broken.mistake, rows)
    yield ""
    yield "## Legal oddities among workers"
    yield ""
    yield from _row("name", "what is unusual")
    yield from _row("---", "---")
    for name, odd in LEGAL_WORKERS.items():
        yield from _row(name, odd.oddity)
    yield ""


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |"


def _first_line(shown: type[object]) -> str:
    """The first sentence of what the class says of itself."""
    text = " ".join((shown.__doc__ or "").split())
    return text.partition(". ")[0].rstrip(".")
