"""Descriptions of what a layer keeps for a block of tokens, apart from any parallelism.

They are what mappings are derived from (MAP-4, MAP-5): a tensor in memory looks the same under
several of them, so the description decides. Sizes are in bytes where the name says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import field, frozen

from kvoffload.canonical.arguments import require_instance, tuple_of
from kvoffload.errors import InvalidValueError, MappingError
from kvoffload.validation import int_at_least, optional_instance, optional_int_at_least

if TYPE_CHECKING:
    from attrs import Attribute


class Encoding(Enum):
    """In which order a page of attention holds its bytes (MAP-5).

    K and V of one token and head side by side (packed), or all K before all V (split); and
    tokens outside heads (NHD, token-major) or heads outside tokens (HND, head-major).
    """

    PACKED_NHD = "packed-nhd"
    PACKED_HND = "packed-hnd"
    SPLIT_NHD = "split-nhd"
    SPLIT_HND = "split-hnd"

    @property
    def is_split(self) -> bool:
        """Whether all K come before all V."""
        return self in _SPLIT

    @property
    def is_head_major(self) -> bool:
        """Whether the tokens of a head are neighbours, rather than the heads of a token."""
        return self in _HEAD_MAJOR


_SPLIT: Final = frozenset({Encoding.SPLIT_NHD, Encoding.SPLIT_HND})
_HEAD_MAJOR: Final = frozenset({Encoding.PACKED_HND, Encoding.SPLIT_HND})


def _element_size(_: object, __: Attribute[int], value: object) -> None:
    """Refuse sub-byte elements by name (MAP-5): no byte of a page would be theirs alone."""
    if isinstance(value, float) and 0 < value < 1:
        raise MappingError(
            f"element_size_bytes {value}: elements smaller than a byte are not mapped, two of them "
            "share one"
        )
    if type(value) is not int or value < 1:
        raise InvalidValueError("element_size_bytes", value, "an int >= 1")


@frozen(kw_only=True)
class AttentionLayer:
    """Attention that keeps K and V of each token and KV head.

    `total_kv_heads` counts the heads of the model, not of one worker. `encoding` is None where
    it is not known; then only a tensor can settle it (MAP-6). `value_head_size` says how many
    elements V has, None as many as K; another size than `head_size` raises MappingError, as do
    elements smaller than a byte. `padded_page_size_bytes` is the distance of a worker's blocks
    in memory where that is more than the page.
    """

    total_kv_heads: int = field(validator=int_at_least(1))
    head_size: int = field(validator=int_at_least(1))
    element_size_bytes: int = field(validator=_element_size)
    encoding: Encoding | None = field(validator=optional_instance(Encoding))
    value_head_size: int | None = field(default=None, validator=optional_int_at_least(1))
    padded_page_size_bytes: int | None = field(default=None, validator=optional_int_at_least(1))

    def __attrs_post_init__(self) -> None:
        if self.value_head_size not in (None, self.head_size):
            raise MappingError(
                f"value_head_size {self.value_head_size} is not head_size {self.head_size}: "
                "heads whose K and V differ in size are not mapped"
            )

    @property
    def vector_size_bytes(self) -> int:
        """Bytes of the K, or of the V, of one token and head."""
        return self.head_size * self.element_size_bytes


@frozen(kw_only=True)
class LatentLayer:
    """Attention that keeps one latent row a token, shared by all heads (MLA).

    A row has `row_elements` elements of `element_size_bytes`, and may carry a second cache
    beside them, as an indexer's keys: `second_row_bytes` more bytes of every token. Each worker
    keeps whole rows, so heads play no part.
    """

    row_elements: int = field(validator=int_at_least(1))
    element_size_bytes: int = field(validator=_element_size)
    second_row_bytes: int = field(default=0, validator=int_at_least(0))
    padded_page_size_bytes: int | None = field(default=None, validator=optional_int_at_least(1))

    @property
    def row_size_bytes(self) -> int:
        """Bytes of one token's row, with what it carries beside the latent."""
        return self.row_elements * self.element_size_bytes + self.second_row_bytes


@frozen(kw_only=True)
class OpaqueLayer:
    """A page of which nothing is known but its size, such as a state-space model's (MAP-5).

    `page_size_bytes` is one worker's page of one block, without padding.
    """

    page_size_bytes: int = field(validator=int_at_least(1))
    padded_page_size_bytes: int | None = field(default=None, validator=optional_int_at_least(1))

    def __attrs_post_init__(self) -> None:
        require_room(self.page_size_bytes, self.padded_page_size_bytes)


SingleLayer: TypeAlias = AttentionLayer | LatentLayer | OpaqueLayer
"""What one layer keeps."""


def _layers(value: Iterable[SingleLayer]) -> tuple[SingleLayer, ...]:
    return tuple_of("layers", value, AttentionLayer, LatentLayer, OpaqueLayer)


@frozen(kw_only=True)
class PackedLayers:
    """Several layers whose pages of a block lie one after another in one block of memory.

    Neither between them nor at their ends is there padding; `padded_page_size_bytes` is that of
    the whole block. Raises MappingError for a layer that has padding of its own.
    """

    layers: tuple[SingleLayer, ...] = field(converter=_layers)
    padded_page_size_bytes: int | None = field(default=None, validator=optional_int_at_least(1))

    def __attrs_post_init__(self) -> None:
        if not self.layers:
            raise InvalidValueError("layers", self.layers, "at least one layer")
        for index, layer in enumerate(self.layers):
            if layer.padded_page_size_bytes is not None:
                raise MappingError(
                    f"layers[{index}] has a padded size of {layer.padded_page_size_bytes} bytes: "
                    "inside a packed block pages lie one after another, only the block is padded"
                )


Layer: TypeAlias = SingleLayer | PackedLayers
"""What one region of a worker's memory keeps for a block."""


def require_layer(value: object) -> None:
    """Raise InvalidValueError for what is no description of a layer."""
    require_instance("layer", value, AttentionLayer, LatentLayer, OpaqueLayer, PackedLayers)


def require_room(page_size_bytes: int, padded_page_size_bytes: int | None) -> None:
    """Raise MappingError if blocks lie closer together than their pages are long."""
    if padded_page_size_bytes is not None and padded_page_size_bytes < page_size_bytes:
        raise MappingError(
            f"padded_page_size_bytes {padded_page_size_bytes} < {page_size_bytes} bytes of the page"
        )
