"""The text of a trace file in blocks: unpacked, and as UTF-8.

    a gzip, a zip of one file, or one in the other ──► unpacked, up to where a kill cut it
    UTF-8 with a mark of its byte order, or UTF-16 ──► UTF-8 without it

What is packed otherwise, or damaged, is refused.
"""

from __future__ import annotations

import codecs
import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from otel_recfn.errors import TraceFileError

BLOCK_BYTES = 1 << 15
"""The number of bytes that are read at a time: the events of more would leave the processor's
cache, and take half as long again.
"""
MAX_WRAPPINGS = 2
"""The maximum number of packings around a trace: it may be a gzip in a zip."""
OTHER_PACKERS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
}
DAMAGED = (
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    struct.error,
    lzma.LZMAError,
)
"""The errors that readers of packed files raise."""
ENCODINGS = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    b"[\0": "utf-16-le",
    b"{\0": "utf-16-le",
    b"\0[": "utf-16-be",
    b"\0{": "utf-16-be",
}
"""The encodings other than UTF-8, by the first bytes of a trace."""


def text_blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a trace's text.

    Raises:
        TraceFileError: the file can't be read, is damaged, or is packed in another way.
    """
    return _as_utf8(_decompressed(path))


def _decompressed(path: Path) -> Iterator[bytes]:
    """The blocks of a file, decompressed, up to where a kill cut it."""
    try:
        with ExitStack() as opened:
            stream: Any = opened.enter_context(open(path, "rb"))
            for _ in range(MAX_WRAPPINGS):
                unpacked = _unpacked(path, stream)
                if unpacked is None:
                    break
                stream = opened.enter_context(unpacked)
            while block := stream.read1(BLOCK_BYTES):
                yield block
    except EOFError:
        return
    except TraceFileError:  # which is a ValueError, too
        raise
    except DAMAGED as error:
        raise TraceFileError(f"{path} is damaged: {error}; copy or record it again") from None
    except OSError as error:
        raise TraceFileError(
            f"{path} can't be read: {error.strerror or error}; look at its name and rights"
        ) from None


def _unpacked(path: Path, stream: Any) -> Any:
    """The stream of the file that is packed in a stream; None if it isn't packed."""
    start = stream.peek(8)
    if start.startswith(b"\x1f\x8b"):
        # Without a mode it would take that of a gzip around it, which is a number.
        return gzip.GzipFile(fileobj=stream, mode="rb")
    if start.startswith(b"PK\x03\x04"):
        try:
            archive = zipfile.ZipFile(stream)
            files = [each for each in archive.infolist() if not each.is_dir()]
            if len(files) == 1:
                return archive.open(files[0])
        except OSError as error:  # of a position outside of the file, which a damaged archive has
            raise zipfile.BadZipFile(error.strerror or str(error)) from None
        raise TraceFileError(
            f"{path} is a zip of {len(files):,} files; unpack it, and give the traces in it"
        )
    packer = next((name for mark, name in OTHER_PACKERS.items() if start.startswith(mark)), "")
    if packer:
        raise TraceFileError(
            f"{path} is packed with {packer}, which a report doesn't read; unpack it, and give what"
            " was in it"
        )
    return None


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """A text in UTF-8 without a mark of its byte order. It may be UTF-16, as PowerShell writes."""
    first = next(blocks, b"")
    while len(first) < 4 and (more := next(blocks, b"")):
        first += more
    encoding = next(
        (encoding for start, encoding in ENCODINGS.items() if first.startswith(start)), None
    )
    whole = chain([first.removeprefix(codecs.BOM_UTF8)], blocks)
    if encoding is None:
        yield from whole
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in whole:
        yield decoder.decode(block).encode("utf-8", "replace")
