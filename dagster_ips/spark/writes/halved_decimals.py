"""Exact sums of decimals that may have as many digits as Spark has: each number as two integers.

Spark rounds these: its unary minus keeps 34 digits, and ``a + b`` drops a decimal place for a digit more (4.1.4). And
what a change adds to a sum may have a digit more than the sum before and the sum after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.spark.late import F

if TYPE_CHECKING:
    from pyspark.sql import Column

MOST_DIGITS = 38
_LOW_DIGITS, _LOWEST_DIGITS = 20, 13
_INTEGER = f"decimal({MOST_DIGITS}, 0)"


@dataclass(frozen=True, slots=True)
class HalvedDecimals:
    """Numbers of ``scale`` decimal places, as structs: in units of the last place, each is ``high * 10**20 + low``.

    Either half may be negative, and ``low`` may have more than 20 digits.
    """

    scale: int

    @property
    def type(self) -> str:
        """Spark's type of these numbers, and of their sums."""
        return f"decimal({MOST_DIGITS}, {self.scale})"

    def total(self, numbers: Column, *, is_negative: Column) -> Column:
        """An aggregate: the sum of ``numbers``, of which those where ``is_negative`` are subtracted; null if none."""
        high, low = (
            F.sum(F.when(is_negative, -half).otherwise(half)) for half in self._parted(numbers.cast(self.type))
        )
        return F.when(high.isNotNull(), _halves(high, self._units(low)))

    def plus(self, number: Column, halves: Column) -> Column:
        """The halves of the sum of a ``number`` and the number of these ``halves``; a null is a zero here."""
        high, low = self._parted(F.coalesce(number.cast(self.type), F.lit(0).cast(self.type)))
        more = [F.coalesce(halves[half], F.lit(0)) for half in ("high", "low")]
        return _halves(high + more[0], self._units(low) + more[1])

    def whole(self, halves: Column) -> Column:
        """The number of these ``halves``; if it is too large for the type, an error, or without ANSI mode null."""
        # Added in two steps, because the high half alone may be too large.
        half = halves["high"] * _power(_LOW_DIGITS, times=0.5)
        units = half + halves["low"] + half
        return F.concat(units.cast("string"), F.lit(f"E-{self.scale}")).cast(self.type)

    def is_zero(self, halves: Column) -> Column:
        """Whether the number of these ``halves`` is zero; null for a null."""
        base = _power(_LOW_DIGITS)
        return (halves["low"] % base == 0) & (halves["high"] + _quotient(halves["low"], base) == 0)

    def _parted(self, number: Column) -> tuple[Column, Column]:
        unit = _power(_LOW_DIGITS - self.scale)
        return _quotient(number, unit).cast(_INTEGER), number % unit

    def _units(self, low: Column) -> Column:
        """A sum of low halves in units of the last place: two integers, because ``div`` gives a bigint."""
        unit = _power(_LOWEST_DIGITS - self.scale)
        upper, lower = _quotient(low, unit), _quotient(low % unit, _power(-self.scale))
        return upper.cast(_INTEGER) * _power(_LOWEST_DIGITS) + lower


def _halves(high: Column, low: Column) -> Column:
    return F.struct(high.cast(_INTEGER).alias("high"), low.cast(_INTEGER).alias("low"))


def _power(exponent: int, *, times: float = 1) -> Column:
    """A power of ten."""
    digits = f"{exponent + 1}, 0" if exponent >= 0 else f"{-exponent}, {-exponent}"
    return F.lit(f"{times}E{exponent}").cast(f"decimal({digits})")


def _quotient(number: Column, divisor: Column) -> Column:
    """The integer part of the quotient, a bigint."""
    return F.call_function("div", number, divisor)
