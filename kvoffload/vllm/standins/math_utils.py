"""The arithmetic of `vllm.utils.math_utils` that policies import."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    quotient, rest = divmod(a, b)
    return quotient + (rest != 0)


def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is not below n, at least 1."""
    power = 1
    while power < n:
        power *= 2
    return power


def round_up(x: int, y: int) -> int:
    """The smallest multiple of y that is not below x."""
    return cdiv(x, y) * y


def round_down(x: int, y: int) -> int:
    """The largest multiple of y that is not above x."""
    return x - x % y
