"""What PyTorch's generator of tracing kernels says of each operator, read from the C++ text that
it writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    """An operator's kernel; each pair is what happens with ``force_outplace``, and what without."""

    traced: bool
    names: tuple[str, str] = ("", "")
    inputs: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    """Name and C++ expression."""
    outputs: tuple[list[str], list[str]] = ([], [])
    guard: tuple[str, str] = ("", "")
    """The operator's name in C++ and the argument that it writes, if the guard asks who else
    uses its data.
    """


_OPTIONS = {
    "c10::optTypeMetaToScalarType({}.options().dtype_opt())": "dtype",
    "{}.options().layout()": "layout",
    "{}.options().device()": "device",
    "{}.options().pinned_memory()": "pin_memory",
}
VALUES = {
    "::std::optional<ScalarType>()": 'Constant("{name}", None)',
    "layout_or_default(::std::nullopt)": 'Constant("{name}", 0)',
    "device_or_default(::std::nullopt)": 'Constant("{name}", "cpu")',
    "pinned_memory_or_default(::std::nullopt)": 'Constant("{name}", False)',
    "c10::MemoryFormat::Preserve": 'Constant("{name}", 1)',
    **{
        cpp.format("out"): f'Option("{{name}}", "out", "{option}")'
        for cpp, option in _OPTIONS.items()
    },
}
"""C++ expressions of inputs that are no arguments, as our facts write them."""


def packaged_schemas() -> Path:
    """The operators of the installed torch."""
    import torchgen

    return Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


def written_by_torchgen(folder: Path) -> str:
    """The text, for the operators of the installed torch."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.packaged.autograd.gen_trace_type import gen_trace_type

    packaged = Path(torchgen.__file__).parent / "packaged"
    native = packaged_schemas()
    functions = parse_native_yaml(str(native), str(native.with_name("tags.yaml"))).native_functions
    gen_trace_type(str(folder), functions, str(packaged / "autograd" / "templates"))
    return (folder / "TraceTypeEverything.cpp").read_text(encoding="utf-8")


def kernels(text: str) -> dict[str, Kernel]:
    """By the operator's name with its overload: definitions and registrations stand in the same
    order.
    """
    for older in ("optional<", "nullopt"):  # PyTorch before 2.5 wrote its own
        text = text.replace(f"c10::{older}", f"::std::{older}")
    names = re.findall(r'm\.impl\("([^"]+)"', text)
    bodies = re.findall(
        r"^\S[^\n]*\(c10::DispatchKeySet ks[^\n]*\) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL
    )
    assert len(names) == len(bodies) == len(set(names))
    return {name: _kernel(body) for name, body in zip(names, bodies, strict=True)}


def _kernel(body: str) -> Kernel:
    if "createNode" not in body:
        assert "addInputs" not in body
        return Kernel(False)
    out_of_place = _mode(body, True)
    in_place = _mode(body, False)
    guard = re.search(r'ensureUniqueIfOutOfPlaced\("(\w+)", (\w+)\)', body)
    return Kernel(
        True,
        (_name(out_of_place), _name(in_place)),
        (_inputs(out_of_place), _inputs(in_place)),
        (_outputs(out_of_place), _outputs(in_place)),
        (guard[1], guard[2]) if guard else ("", ""),
    )


def _mode(body: str, force_outplace: bool) -> str:
    """The body without what the other mode does."""
    choice = re.compile(
        r"if \((?:tracer_state->)?force_outplace\) \{\n(.*?)\n *\} else \{\n(.*?)\n *\}", re.DOTALL
    )
    return choice.sub(lambda found: found[1] if force_outplace else found[2], body)


def _name(body: str) -> str:
    (name,) = re.findall(r'fromQualString\("aten::(\w+)"\)', body)
    return name


def _inputs(body: str) -> list[tuple[str, str]]:
    declared = dict(re.findall(r"std::optional<MemoryFormat> (\w+) = (\S+);", body))
    found = re.findall(r'addInputs\(node, "(\w+)", (.+)\);$', body, re.MULTILINE)
    return [(name, declared.get(value, value)) for name, value in found]


def _outputs(body: str) -> list[str]:
    return re.findall(r"addOutput\(node, (\w+)\);", body)
