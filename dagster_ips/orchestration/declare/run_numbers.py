"""Names of numbers that a run's metadata has, and from which later runs are estimated."""

from __future__ import annotations

ROWS_CAPTURED, BYTES_CAPTURED = "rows captured", "bytes captured"
CAPTURE_SECONDS, WRITE_SECONDS = "capture seconds", "write and publish seconds"
