"""Names in a run's metadata from which later runs are estimated."""

from __future__ import annotations

ROWS_CAPTURED, BYTES_CAPTURED = "rows captured", "bytes captured"
CAPTURE_SECONDS, WRITE_SECONDS = "capture seconds", "write and publish seconds"
PUBLISHED = "published snapshot"
"""Only runs that wrote something have it."""
