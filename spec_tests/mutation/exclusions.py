"""Which changes are not tried, by rule and reason: `[tool.kvoffload-mutation]` in pyproject.toml.

A rule has a name here and its reason there, so that all reasons stand in one place.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from attrs import frozen

SYNTAX_RULES = (
    "f-strings",
    "strings-in-raise",
    "type-of-cast",
    "descriptions",
    "strict-of-zip",
)
"""Rules that the generator knows by name; see `generator.excluded_by`."""


class ConfigurationError(Exception):
    """The configuration names what does not exist."""


@frozen
class Configuration:
    """What is mutated, and what of it is not.

    `packages` are folders of modules. `syntax` has a reason for each rule in force; `functions`
    one for each pattern of `module:function`.
    """

    packages: tuple[str, ...]
    syntax: Mapping[str, str]
    functions: Mapping[str, str]

    def pattern_against(self, module: str, function: str) -> str | None:
        """The pattern that excludes a function, None if it is to be mutated."""
        name = f"{module}:{function}"
        return next((pattern for pattern in self.functions if fnmatchcase(name, pattern)), None)


def load_configuration(path: Path) -> Configuration:
    """Read the table of a pyproject.toml. Raises ConfigurationError."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["kvoffload-mutation"]
    configuration = Configuration(
        tuple(table["packages"]), table["exclude-syntax"], table["exclude-functions"]
    )
    if unknown := sorted(set(configuration.syntax) - set(SYNTAX_RULES)):
        raise ConfigurationError(f"no such rules of syntax: {', '.join(unknown)}")
    return configuration
