"""Text as whole gzip members."""

from __future__ import annotations

import ctypes
import gzip
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
from otel_recfn.sinks.files import text_stream
from otel_recfn.sinks.files.text_stream import GzipStream


@pytest.fixture(params=["zlib", "igzip"])
def compressor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    module = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(text_stream, "deflate", module)


@pytest.mark.usefixtures("compressor")
@pytest.mark.parametrize("piece", [b"x", b"abc" * 100_000, os.urandom(1 << 21)])
def test_all_that_was_put_is_there_after_a_flush(piece: bytes) -> None:
    stream, content, text = GzipStream(), b"", b""
    for _ in range(4):
        content += stream.put(piece) + stream.put(b"")
        text += piece
        content += stream.flush()
        assert gzip.decompress(content) == text
    assert stream.flush() == b""


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=8))
def test_any_parts(parts: list[bytes]) -> None:
    stream = GzipStream()
    content = stream.alone(b"[")
    for part in parts:
        content += stream.put(part) + stream.flush()
    assert gzip.decompress(content + stream.alone(b"]")) == b"[" + b"".join(parts) + b"]"


def test_what_is_put_is_written_in_pieces_each_whole_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_stream, "MEMBER_BYTES", 100_000)
    stream, text = GzipStream(), os.urandom(2_000_000)
    members = [stream.put(text[first : first + 10_000]) for first in range(0, len(text), 10_000)]
    assert sum(map(bool, members)) > 1
    assert gzip.decompress(b"".join(members) + stream.flush()) == text
    assert all(zlib.decompressobj(wbits=31).decompress(member) for member in members if member)


def test_what_is_forgotten_is_not_written() -> None:
    stream = GzipStream()
    content = stream.put(b"kept") + stream.flush()
    stream.put(b"forgotten")
    stream.forget()
    assert gzip.decompress(content + stream.put(b", too") + stream.flush()) == b"kept, too"


@given(st.integers(0, 200_000))
def test_texts_of_one_length_take_as_many_bytes_alone(length: int) -> None:
    stream = GzipStream()
    assert len(stream.alone(b" " * length)) == len(stream.alone(os.urandom(length)))


UPPER_IN_USE = """
#include <cpuid.h>
extern "C" int upper_in_use() {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid_count(13, 1, &a, &b, &c, &d) || !(a & 4)) return -1;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return low >> 2 & 1;
}
"""
"""Bit 2 of what XGETBV says of register 1: the upper halves of the vector registers hold something. -1 where it doesn't say."""


@pytest.fixture
def upper_in_use(tmp_path: Path) -> Callable[[], int]:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("no such registers")
    source, library = tmp_path / "upper.cpp", tmp_path / "upper.so"
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
        stream.put(piece)
        assert upper_in_use() == 0
        stream.flush()
        assert upper_in_use() == 0
