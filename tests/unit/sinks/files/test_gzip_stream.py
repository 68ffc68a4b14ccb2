"""A gzip stream is whole wherever it is ended, and goes on after."""

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
from otel_recfn.sinks.files import gzip_stream
from otel_recfn.sinks.files.gzip_stream import GzipStream

FOOTER = b"\n]}\n"


@pytest.fixture(params=["zlib", "igzip"])
def compressor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    module = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(gzip_stream, "deflate", module)


@pytest.mark.usefixtures("compressor")
@pytest.mark.parametrize("piece", [b"x", b"abc" * 100_000, bytes(range(256)) * 10_000])
def test_each_end_is_whole_and_the_next_part_follows(piece: bytes) -> None:
    stream, content, text = GzipStream(), b"", b""
    for _ in range(4):
        content += stream.put(piece) + stream.put(b"") + stream.flush()
        text += piece
        assert gzip.decompress(content + stream.tail(FOOTER)) == text + FOOTER


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=8))
def test_any_parts(parts: list[bytes]) -> None:
    stream = GzipStream()
    content = stream.put(b"[")
    for part in parts:
        content += stream.put(part) + stream.flush()
    assert gzip.decompress(content + stream.tail(FOOTER)) == b"[" + b"".join(parts) + FOOTER


@given(st.binary(max_size=3000), st.sampled_from([0, 1, 65_534, 65_535, 65_536, 131_070, 200_000]))
def test_any_end(part: bytes, size: int) -> None:
    stream, end = GzipStream(), bytes(range(256)) * 800
    content = stream.put(b"[") + stream.put(part) + stream.flush()
    assert gzip.decompress(content + stream.tail(end[:size])) == b"[" + part + end[:size]


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
        stream.tail(FOOTER)
        assert upper_in_use() == 0
