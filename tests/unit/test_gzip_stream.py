"""A gzip stream is whole wherever it is ended, and goes on after."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.sinks import gzip_stream
from otel_recfn.sinks.gzip_stream import GzipStream

FOOTER = b"\n]}\n"


@pytest.fixture(params=["zlib", "igzip"])
def compressor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    module = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(gzip_stream, "deflate", module)


@pytest.mark.usefixtures("compressor")
@pytest.mark.parametrize("piece", [b"x", b"abc" * 100_000, bytes(range(256)) * 10_000])
def test_each_end_is_whole_and_the_next_part_follows(piece: bytes) -> None:
    stream, content, text = GzipStream(FOOTER), b"", b""
    for _ in range(4):
        content += stream.put(piece) + stream.put(b"") + stream.settle()
        text += piece
        assert gzip.decompress(content + stream.tail()) == text + FOOTER


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=8))
def test_any_parts(parts: list[bytes]) -> None:
    stream = GzipStream(FOOTER)
    content = stream.put(b"[")
    for part in parts:
        content += stream.put(part) + stream.settle()
    assert gzip.decompress(content + stream.tail()) == b"[" + b"".join(parts) + FOOTER
