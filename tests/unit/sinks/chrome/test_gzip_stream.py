"""Text as whole gzip members."""

from __future__ import annotations

import ctypes
import gzip
import io
import os
import platform
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn import _native
from otel_recfn.sinks import gzip_stream
from otel_recfn.sinks.gzip_stream import PAGE, GzipStream


@pytest.fixture(params=["zlib", "igzip"])
def compressor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    module = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(gzip_stream, "deflate", module)


@pytest.mark.usefixtures("compressor")
@pytest.mark.parametrize("piece", [b"x", b"abc" * 100_000, os.urandom(1 << 21)])
def test_all_that_was_put_is_there_after_a_flush(piece: bytes) -> None:
    stream = GzipStream()
    content = b""
    text = b""
    for _ in range(4):
        content += stream.put(piece, len(content))
        content += stream.put(b"", len(content))
        text += piece
        content += stream.flush(len(content))
        # Gzip.decompress takes ten times as long for many.
        with gzip.open(io.BytesIO(content)) as members:
            assert members.read() == text
    assert stream.flush(len(content)) == b""


PARTS = st.lists(st.tuples(st.binary(max_size=3000), st.integers(1, 30)), min_size=1, max_size=8)


@given(PARTS, st.integers(0, 9000))
def test_a_file_that_is_cut_between_two_pages_is_whole(
    parts: list[tuple[bytes, int]], alone: int
) -> None:
    stream = GzipStream()
    texts = [b" " * alone, *[part * times for part, times in parts]]
    content = stream.encode_apart(texts[0], 0)
    for text in texts[1:]:
        content += stream.put(text, len(content))
        content += stream.flush(len(content))
    content += stream.encode_apart(texts[0], len(content))
    assert gzip.decompress(content) == b"".join([*texts, texts[0]])
    for cut in range(PAGE, len(content), PAGE):
        assert b"".join([*texts, texts[0]]).startswith(gzip.decompress(content[:cut]))


def test_what_is_forgotten_is_not_written() -> None:
    stream = GzipStream()
    content = stream.put(b"kept", 0) + stream.flush(0)
    stream.put(b"forgotten", len(content))
    stream.forget()
    assert (
        gzip.decompress(content + stream.put(b", too", len(content)) + stream.flush(len(content)))
        == b"kept, too"
    )


UPPER_IN_USE = """
#include <cpuid.h>
extern "C" int upper_in_use() {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid_count(13, 1, &a, &b, &c, &d) || !(a & 4)) return -1;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return low >> 2 & 1;
}
"""
"""Bit 2 of what XGETBV says of register 1: the upper halves of the vector registers hold
something. -1 where it doesn't say.
"""


@pytest.fixture
def upper_in_use(tmp_path: Path) -> Callable[[], int]:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("no such registers")
    source = tmp_path / "upper.cpp"
    library = tmp_path / "upper.so"
    source.write_text(UPPER_IN_USE)
    compiler = shutil.which(os.environ.get("CXX", "c++")) or pytest.skip("needs a compiler")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    answer: Callable[[], int] = ctypes.PyDLL(str(library)).upper_in_use
    if answer() < 0:
        pytest.skip("this processor does not tell")
    return answer


def test_the_vector_registers_are_left_as_they_were(upper_in_use: Callable[[], int]) -> None:
    deflate = pytest.importorskip("isal.isal_zlib")
    deflate.crc32(b"x" * 1000)
    if not upper_in_use():
        pytest.skip("igzip leaves nothing behind on this processor")
    _native.zero_upper_vectors()
    assert upper_in_use() == 0
    stream = GzipStream()
    for piece in (b"x" * 1000, os.urandom(100_000)):
        stream.put(piece, 0)
        stream.flush(0)
        assert upper_in_use() == 0
