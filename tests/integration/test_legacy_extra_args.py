"""What an event's FLOPs are counted from: what PyTorch's own ``saveExtraArgs`` keeps of the same operators."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_library import built_with_torch

from otel_recfn import RecordFunction
from otel_recfn.legacy import EventKind, ProfilerConfig, ProfilerState, disable_profiler_legacy, enable_profiler_legacy

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.one_python,
    pytest.mark.usefixtures("needs_observer"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch warns of what it doesn't count
]

SOURCE = Path(__file__).with_name("torchs_extra_args.cpp")
WORDS = [
    "same",
    "valid",
    "",
    "no such padding",
    'a "b" \\ c',
    "\x00\x01\n\t\x7f",
    "häß",
    "\u2028日本語",
    "😀",
    "x" * 300,
    "ä" * 300,
]
X, KERNEL = torch.ones(1, 2, 5, 5), torch.ones(4, 2, 3, 3)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = built_with_torch(SOURCE, tmp_path_factory.mktemp("theirs"), "c++20")
    library.kept_extra_args.restype = ctypes.c_char_p
    return library


def kept_by_torch(library: ctypes.CDLL) -> list[tuple[str, dict[str, Any]]]:
    lines = library.kept_extra_args().decode().splitlines()
    found = [json.loads(line) for line in lines]
    return [
        (name, {key: bytes.fromhex(value).decode() if type(value) is str else value for key, value in args.items()})
        for name, args in found
    ]


def both(library: ctypes.CDLL, program: Callable[[], object]) -> list[tuple[str, dict[str, Any]]]:
    """Of each operator, after comparison of ours with theirs."""
    library.keep_extra_args()
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, with_flops=True))
    try:
        program()
    finally:
        (events,) = disable_profiler_legacy()
        expected = kept_by_torch(library)
    ours = [(event.name, event.extra_args) for event in events if event.kind == EventKind.PUSH_RANGE]
    assert ours == expected
    return ours


def convolve(padding: Any, kernel: Any = KERNEL, **options: Any) -> None:
    try:
        torch.conv2d(X, kernel, padding=padding, **options)
    except (RuntimeError, ValueError):  # a padding that there isn't, of an operator that has begun
        pass


@pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))
def test_a_word_for_a_convolutions_padding_is_told(theirs: ctypes.CDLL, word: str) -> None:
    [(name, args), *_] = both(theirs, lambda: convolve(word))
    assert (name, args["padding"]) == ("aten::conv2d", word)


OTHERS: dict[str, Callable[[], object]] = {
    "numbers": lambda: convolve((1, 0), stride=2, dilation=(1, 2)),
    "one number": lambda: convolve(1, dilation=2),
    "stride and a word": lambda: convolve("valid", stride=(2, 3)),
    "unbatched": lambda: torch.conv2d(X[0], KERNEL, padding="same"),
    "no 4D kernel": lambda: convolve(0, kernel=KERNEL[0]),
    "no 4D kernel and a word": lambda: convolve("same", kernel=KERNEL[0]),
    "conv1d": lambda: torch.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 2), padding="same"),
    "conv3d": lambda: torch.conv3d(torch.ones(1, 2, 5, 5, 5), torch.ones(3, 2, 2, 2, 2), padding="same"),
    "module": lambda: torch.nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular")(X),
    "other words": lambda: (torch.einsum("ij,jk->ik", X[0, 0], X[0, 0]), torch.nn.functional.gelu(X, approximate="tanh")),
    "division": lambda: torch.div(X, 2, rounding_mode="floor"),
    "add": lambda: (X + X, X + 1, X.add(X, alpha=2), torch.add(1, X)),
    "mul": lambda: (X * X, X * 2.5, torch.tensor(2) * 3),
    "products": lambda: (torch.mm(X[0, 0], X[0, 1]), torch.bmm(X[0], X[0]), torch.ones(0, 3) @ torch.ones(3, 2)),
    "sums of products": lambda: (torch.addmm(torch.ones(5), X[0, 0], X[0, 1]), torch.baddbmm(X[0], X[0], X[0], beta=2)),
    "backward": lambda: (torch.ones(3, 3, requires_grad=True) @ torch.ones(3, 3)).sum().backward(),
}


@pytest.mark.parametrize("program", OTHERS.values(), ids=OTHERS)
def test_each_operator_has_what_pytorch_keeps_of_it(theirs: ctypes.CDLL, program: Callable[[], object]) -> None:
    assert both(theirs, program)


def ours_with(inputs: list[Any], name: str = "aten::conv2d") -> None:
    with RecordFunction() as range_:
        range_.before(name, inputs)


SIZED = [X, KERNEL, None, 1]
RANGES: dict[str, tuple[str, list[Any]]] = {
    "a word": ("aten::conv2d", [*SIZED, "same", 1, 1]),
    "more words": ("aten::conv2d", [X, KERNEL, "none", "two", 'th"ree', "fünf", ""]),
    "no tensor": ("aten::conv2d", [X, 3, None, 1, "same", 1, 1]),
    "too few": ("aten::conv2d", [X]),
    "numbers": ("aten::mm", [1, 2]),
    "a number first": ("aten::add", [1, X]),
    "a word first": ("aten::mul", ["text", X]),
    "another operator": ("ours", [X, "text"]),
}


@pytest.mark.parametrize(("name", "inputs"), RANGES.values(), ids=RANGES)
def test_ranges_of_ours_have_what_pytorch_keeps_of_them(theirs: ctypes.CDLL, name: str, inputs: list[Any]) -> None:
    with torch.profiler.profile():  # PyTorch is told of our ranges while a profiler of its own runs
        assert [kept[0] for kept in both(theirs, lambda: ours_with(inputs, name))] == [name]


def alone(program: Callable[[], object]) -> list[dict[str, Any]]:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, with_flops=True))
    program()
    (events,) = disable_profiler_legacy()
    return [event.extra_args for event in events if event.name == "aten::conv2d"]


@pytest.mark.parametrize("told", [convolve, lambda word: ours_with([*SIZED, word])])
def test_long_words_are_cut_at_a_character(told: Callable[[str], None]) -> None:
    [args] = alone(lambda: told("x" + "€" * 5000))
    assert args["padding"] == "x" + "€" * 341  # 1024 bytes
    many = [X, KERNEL, *["\x01" * 1024] * 5]
    assert [sorted(each) for each in alone(lambda: ours_with(many))] == [["input_size", "weight_size"]]


def test_who_changes_an_events_arguments_changes_no_others() -> None:
    first, second = alone(lambda: (convolve(1), convolve(1)))
    first["stride"].append(3)
    assert second["stride"] == [1, 1]
