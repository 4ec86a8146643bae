"""Everything that an object holds on to, by walking the references from it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from logging import Logger
from threading import Thread
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Final

SHARED: Final = (type, ModuleType, CodeType, FrameType, Logger, Thread)
"""What is not an object's own although it can be reached, and nothing is reached through it."""


def reachable(
    *roots: object, beside: Sequence[object] = (), leaves: tuple[type, ...] = ()
) -> Iterator[object]:
    """Each distinct object that can be reached from the roots, and the roots.

    Not by weak references, and not through modules, classes or what functions find in their
    modules, nor through what is in `beside`. Objects of the classes `leaves` are told, and not
    looked into.
    """
    seen = {id(one) for one in beside}
    stack = list(roots)
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, SHARED):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, leaves):
            continue
        if isinstance(thing, FunctionType):
            stack += (thing.__closure__, thing.__defaults__, thing.__kwdefaults__)
            stack.append(thing.__dict__)
            continue
        stack += gc.get_referents(thing)
        if isinstance(thing, dict):
            # Text as a key refers to nothing, and the collector is not told of it.
            names: dict[object, object] = thing
            stack += dict[object, object].keys(names)
