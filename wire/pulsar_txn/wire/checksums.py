"""CRC32C, from a library that is loaded when the first checksum is computed: its import costs more than all of `wire`.

Call it as `checksums.crc32c(data, crc)`: from the first call on, the attribute of this module is the function itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:

    def __getattr__(name: str) -> Any:
        if name != "crc32c":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from crc32c import crc32c

        globals()[name] = crc32c
        return crc32c
