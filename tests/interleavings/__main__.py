"""``python -m tests.interleavings LIVES [FIRST_SEED]`` lives many random lives, and says what happened in them."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter

from tests.interleavings.life import WrongRowsError, life

_SHOWN = 14


def main(lives: int, first: int = 0) -> int:
    """Live; returns how many lives went wrong."""
    counts: Counter[str] = Counter()
    began, wrong = time.monotonic(), 0
    for seed in range(first, first + lives):
        try:
            counts += life(seed).counts
        except (Exception, WrongRowsError) as error:  # noqa: BLE001  # every kind is reported
            wrong += 1
            print(f"--- seed {seed}: {traceback.format_exc(limit=-4)}")
            print("\n".join(error.__notes__[-1].splitlines()[-_SHOWN:]))
    print(f"{lives} lives from seed {first}, {wrong} wrong, {time.monotonic() - began:.0f} s")
    for what, count in sorted(counts.items()):
        print(f"{count:9,} {what}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
