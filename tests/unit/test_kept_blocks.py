"""``native/memory/``: large blocks are used again while somebody wants it, and none stays
behind.

Compiled here.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.timeouts import PATIENCE_S

pytestmark = pytest.mark.one_python

NATIVE = Path(__file__).parents[2] / "src/otel_recfn/native"
MIB = 1 << 20
MOST_KEPT = 48 * MIB
PROGRAM = """
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "memory/unfilled.hpp"

std::atomic<size_t> live{0};  // bytes, with those that are kept
void* operator new(size_t bytes) {
  auto* block = static_cast<size_t*>(std::malloc(bytes + 16));
  if (block == nullptr) throw std::bad_alloc();
  *block = bytes, live += bytes;
  return block + 2;
}
void operator delete(void* given) noexcept {
  if (given == nullptr) return;
  size_t* block = static_cast<size_t*>(given) - 2;
  live -= *block;
  std::free(block);
}
void operator delete(void* given, size_t) noexcept { operator delete(given); }

using Bytes = recfn::UnfilledVector<char>;

bool used_by_one(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Bytes> held(8);
  for (int turn = 0; turn < 500; ++turn) {
    Bytes& one = held[random() % held.size()];
    const char mark = static_cast<char>(random());
    Bytes(size_t{1} << (12 + random() % 10)).swap(one);
    std::fill(one.begin(), one.end(), mark);
    std::this_thread::yield();
    if (one[0] != mark || std::memcmp(&one[0], &one[1], one.size() - 1) != 0) return false;
  }
  return true;
}

bool threads_use_blocks_of_their_own(bool& passed) {
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  std::atomic<bool> good{true};
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] { if (!used_by_one(seed)) good = false; --running; });
  }
  for (bool wanted = true; running > 0; wanted = !wanted) {
    recfn::spare_blocks.keep(wanted);
    std::this_thread::yield();
  }
  for (std::thread& each : threads) each.join();
  return passed = good;
}

int main() {
  std::map<size_t, Bytes> held;
  std::string what;
  for (size_t number, bytes; std::cin >> what >> number >> bytes;) {
    const size_t before = live;
    if (what == "keep") recfn::spare_blocks.keep(number != 0);
    if (what == "take") held[number] = Bytes(bytes);
    if (what == "give") Bytes().swap(held[number]);
    bool passed = true;
    if (what == "threads") threads_use_blocks_of_their_own(passed);
    size_t in_use = 0;
    for (auto& [_, each] : held) in_use += each.capacity();
    size_t added = live > before ? live - before : 0;
    std::cout << passed << " " << added << " " << live << " " << in_use << std::endl;
  }
}
"""


class Blocks:
    """Asks the compiled code."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what: str, number: int = 0, size: int = 0) -> list[int]:
        """Whether it went well; bytes that are new, that are there, and that are in use."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, int(number), size, file=self._process.stdin, flush=True)
        return [int(part) for part in self._process.stdout.readline().split()]

    def end(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "blocks.cpp").write_text(
        "#include <algorithm>\n#include <atomic>\n" + PROGRAM, encoding="utf-8"
    )
    flags = ["-std=c++17", "-O1", "-pthread", f"-I{NATIVE}"]
    subprocess.run([compiler, *flags, folder / "blocks.cpp", "-o", folder / "blocks"], check=True)
    return folder / "blocks"


ROOM = 64 << 10
"""What the program itself has, beside its blocks."""
sizes = st.integers(0, 24).flatmap(lambda digits: st.integers(1 << digits, 2 << digits))
tasks = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 9), sizes),
    st.tuples(st.just("give"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("keep"), st.integers(0, 1), st.just(0)),
)


@given(todo=st.lists(tasks, max_size=40))
def test_so_much_is_kept_while_it_is_wanted_and_else_nothing(
    program: Path, todo: list[tuple[str, int, int]]
) -> None:
    blocks = Blocks(program)
    keeps = False
    try:
        for what, number, size in todo:
            keeps = bool(number) if what == "keep" else keeps
            _, _, there, in_use = blocks.ask(what, number, size)
            assert there <= 2 * in_use + ROOM + (MOST_KEPT if keeps else 0)
    finally:
        blocks.end()


@pytest.mark.parametrize("size", [17 << 10, 100_000, MIB, 9 * MIB, 16 * MIB])
def test_what_was_given_back_is_used_again(program: Path, size: int) -> None:
    blocks = Blocks(program)
    try:
        for wanted in (True, False):
            blocks.ask("keep", wanted)
            assert blocks.ask("take", 1, size)[1] >= size
            blocks.ask("give", 1)
            assert (blocks.ask("take", 1, size - 1000)[1] < ROOM // 4) is wanted
            blocks.ask("give", 1)
    finally:
        blocks.end()


def test_threads_use_blocks_of_their_own_and_leave_none_behind(program: Path) -> None:
    blocks = Blocks(program)
    try:
        assert blocks.ask("threads")[0] == 1
        assert blocks.ask("keep", False)[2] < ROOM
    finally:
        blocks.end()
