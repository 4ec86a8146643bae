"""Where an error came up: in a line that its author can look at."""

import dataclasses
import json

import pytest

from stateful_models.loading import describe, place_of


def test_a_place_is_in_a_file_of_the_author() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("x")
    assert place_of(raised.value).startswith("test_places.py:")
    with pytest.raises(TypeError) as refused:
        dataclasses.fields(3)  # type: ignore[arg-type]  # no dataclass, which is the mistake
    assert " at test_places.py:" in describe(refused.value)
