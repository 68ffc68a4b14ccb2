"""What is written: modules that linters and formatters leave alone, and files that change only
where they must.
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn import cli, profile
from otel_recfn.codegen.modules import WrapperRequest, generate, stale_files, write
from otel_recfn.errors import RecfnError, SchemaError

pytestmark = [pytest.mark.torch, pytest.mark.one_python]

HERE = Path(__file__).parent
HANDFUL = HERE / "handful.yaml"
REQUESTS = {
    "for_torch": WrapperRequest(HANDFUL),
    "for_python": WrapperRequest(HANDFUL, "handful_kernels:FUNCTIONS", 2),
}


@pytest.fixture(scope="module", autouse=True)
def with_torchgen() -> None:
    pytest.importorskip("torchgen")


def schema(folder: Path, *functions: str) -> Path:
    """A schema file with these operators."""
    file = folder / "ops.yaml"
    file.write_text("".join(f"- func: {each}\n" for each in functions), encoding="utf-8")
    return file


def linted(folder: Path, package: str) -> str:
    """What ruff says of it."""
    output = ""
    for command in (
        ["check", "-q", "--select", "E,F,W,I,UP,B,C4,SIM,RUF,PT,PIE,PERF,RET"],
        ["format", "-q", "--diff"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", package]
        done = subprocess.run(ruff, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
        if "No module named ruff" in done.stderr:
            pytest.skip("ruff is not installed")
        output += done.stdout + done.stderr
    return output


def test_the_type_checker_finds_nothing(tmp_path: Path) -> None:
    write(tmp_path / "handful", generate(REQUESTS["for_python"]).texts)
    (tmp_path / "uses.py").write_text(
        "from handful import add_Tensor, minmax,"
        " numel\nreveal_type(minmax(1.0))\nreveal_type(numel(1.0))\nadd_Tensor(1.0, 2.0,"
        " 3)\nadd_Tensor(1.0, 2.0, alpha='3')\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--follow-imports=skip",
    ]
    done = subprocess.run(
        [*command, "handful", "uses.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if "No module named mypy" in done.stderr:
        pytest.skip("mypy is not installed")
    errors = [line for line in done.stdout.splitlines() if ": error:" in line or "Revealed" in line]
    assert [line.split(": ", 1)[0] for line in errors] == [
        f"uses.py:{line}" for line in (2, 3, 4, 5)
    ], done.stdout
    assert 'is "tuple[Any, Any]"' in errors[0]
    assert 'is "int"' in errors[1]
    assert "[call-arg]" in errors[2] or "[misc]" in errors[2]
    assert "[arg-type]" in errors[3]


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    texts = generate(WrapperRequest(HANDFUL, shards=2)).texts
    assert sorted(path.name for path in write(tmp_path, texts)) == [
        "__init__.py",
        "wrappers_0.py",
        "wrappers_1.py",
    ]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert write(tmp_path, texts) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    (tmp_path / "wrappers_1.py").write_text(texts["wrappers_1.py"] + "# changed\n")
    assert write(tmp_path, texts) == [tmp_path / "wrappers_1.py"]


def test_fewer_shards_leave_no_old_ones(tmp_path: Path) -> None:
    write(tmp_path, generate(WrapperRequest(HANDFUL, shards=3)).texts)
    (tmp_path / "wrappers_of_mine.py").write_text("# by hand\n")
    texts = generate(WrapperRequest(HANDFUL)).texts
    assert tmp_path / "wrappers_2.py" in stale_files(tmp_path, texts)
    write(tmp_path, texts)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "__init__.py",
        "wrappers_0.py",
        "wrappers_of_mine.py",
    ]


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "__init__.py"
    mine.write_text("MINE = 1\n")
    with pytest.raises(RecfnError, match="was not written by otel-recfn codegen"):
        write(tmp_path, generate(WrapperRequest(HANDFUL)).texts)
    assert [path.name for path in tmp_path.iterdir()] == ["__init__.py"]
    assert mine.read_text() == "MINE = 1\n"


def test_defaults_that_read_the_same_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrappers of PyTorch's operators leave out what is the default; a text is not the number
    that reads like it.
    """
    torch = pytest.importorskip("torch")
    functions = [
        'f(Tensor x, str a="2") -> Tensor',
        "h(Tensor x, int[1] a=[2]) -> Tensor",
        "g(Tensor x, int a=2) -> Tensor",
    ]
    write(
        tmp_path / "alike",
        generate(WrapperRequest(schema(tmp_path, *(f"alike::{each}" for each in functions)))).texts,
    )
    library = torch.library.Library("alike", "DEF")
    for each in functions:
        library.define(each)
        library.impl(
            each[0], lambda x, a="default": torch.full_like(x, 1 if a == "default" else 3), "CPU"
        )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("alike")
    assert [function(torch.zeros(1)).item() for function in (module.f, module.g, module.h)] == [
        1,
        1,
        1,
    ]
    with pytest.raises(RuntimeError, match="str"):
        module.f(torch.zeros(1), 2)


def test_the_text_does_not_depend_on_hashes_of_the_process(tmp_path: Path) -> None:
    program = "import sys; from otel_recfn import cli; sys.exit(cli.main(sys.argv[1:]))"
    for seed in ("1", "2"):
        command = [
            sys.executable,
            "-c",
            program,
            "codegen",
            "--schema",
            str(HANDFUL),
            "--out",
            str(tmp_path),
            "--shards",
            "2",
        ]
        check = ["--check"] if seed == "2" else []
        done = subprocess.run(
            [*command, *check],
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--out", str(tmp_path / "out"), "--dispatch", "handful_kernels", "--shards", "2"]
    command = ["codegen", "--schema", str(HANDFUL), *options]
    assert cli.main([*command, "--check"]) == 1
    assert f"stale: {tmp_path / 'out' / '__init__.py'}" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert cli.main(command) == 0
    assert "10 operators, of which 8 are recorded in graphs" in capsys.readouterr().out
    assert cli.main([*command, "--check"]) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "out" / "wrappers_0.py").unlink()
    assert cli.main([*command, "--check"]) == 1
    assert capsys.readouterr().out == f"stale: {tmp_path / 'out' / 'wrappers_0.py'}\n"


def test_the_command_tells_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = schema(tmp_path, "f(Tensor self) -> Tensor", "lib::g(Tensor self, what other) -> Tensor")
    assert cli.main(["codegen", "--schema", str(file), "--out", str(tmp_path / "out")]) == 1
    assert f"{file}:2: lib::g: " in capsys.readouterr().err
    assert (
        cli.main(["codegen", "--schema", str(tmp_path / "none.yaml"), "--out", str(tmp_path)]) == 1
    )
    assert "none.yaml" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["codegen", "--schema", str(file), "--out", str(tmp_path), "--shards", "0"])


def test_what_pytorch_traces_by_hand_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = schema(tmp_path, "detach(Tensor(a) self) -> Tensor(a)", "relu(Tensor self) -> Tensor")
    assert cli.main(["codegen", "--schema", str(file), "--out", str(tmp_path / "out")]) == 0
    assert (
        "1 operators, of which 1 are recorded in graphs; left out: aten::detach"
        in capsys.readouterr().out
    )
    assert "aten::detach" in (tmp_path / "out" / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            ["f.a_b(Tensor self) -> Tensor", "f_a.b(Tensor self) -> Tensor"],
            "its wrapper would need the name 'f_a_b'",
        ),
        (
            ["f(Tensor self, int from, int from_) -> Tensor"],
            "no function has such arguments: duplicate argument 'from_'",
        ),
        (
            ["f(Tensor self, int a=1, int b) -> Tensor"],
            "no function has such arguments: .* default",
        ),
        (["f(Tensor self, int a=one) -> Tensor"], "the default 'one' of 'a' can't be read"),
        (["f(Tensor self, int 2) -> Tensor"], "no function has such arguments"),
    ],
)
def test_schemas_that_python_has_no_signature_for(
    tmp_path: Path, functions: list[str], message: str
) -> None:
    file = schema(tmp_path, *functions)
    with pytest.raises(SchemaError, match=message) as raised:
        generate(WrapperRequest(file))
    assert str(raised.value).startswith(f"{file}:{len(functions)}: ")


ODD_NAMES = """
- func: odd::lambda(Tensor self, Tensor lambda, *, int from, int? None=None) -> Tensor
- func: odd::and(Tensor self, int torch=1, *,
    MemoryFormat memory_format=contiguous_format) -> Tensor
- func: odd::__iand__.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)
- func: odd::int(Tensor self, int int=1, float float=0.5, str str="a\\"b'c\\\\") -> int
- func: odd::print(Tensor self, int l, int I=2, int O=3) -> Tensor
- func: odd::Watched(Tensor Watched) -> Tensor
- func: odd::x(Tensor? self=None, *, int two=2) -> Tensor
- func: odd::Any(Tensor Any, Tensor Constant) -> Tensor
- func: odd::count(Tensor Guard, int[2][] nested) -> int
- func: odd::numbers(float a=inf, float b=-inf, float c=1e999, Scalar d=nan, float e=1) -> Tensor
- func: odd::texts(str a="2", int b=2, int[1] c=[2], float d=2.0, str e="a b", str f="a-b",
    str g="\\u2029") -> Tensor
- func: odd::nothing() -> ()
- func: odd::LU(Tensor self) -> (Tensor LU, Tensor pivots, Tensor self)
- func: odd::long(Tensor self,
    Tensor(a!) with_a_name_that_is_so_long_that_no_line_has_room_for_its_type) -> (Tensor, Tensor)
"""


KERNELS = """
class Functions(dict):
    def __contains__(self, name):
        return True
    def __missing__(self, name):
        return lambda *args, **kwargs: (name, args, kwargs)
FUNCTIONS = Functions()
"""


@pytest.mark.parametrize("dispatch", ["", "odd_kernels:FUNCTIONS"])
def test_odd_names(dispatch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not dispatch:
        pytest.importorskip("torch")
    (tmp_path / "ops.yaml").write_text(ODD_NAMES)
    package = "odd_for_python" if dispatch else "odd_for_torch"
    write(tmp_path / package, generate(WrapperRequest(tmp_path / "ops.yaml", dispatch)).texts)
    assert linted(tmp_path, package) == ""
    (tmp_path / "odd_kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(package)
    names = {
        "lambda_",
        "and_",
        "__iand___Scalar",
        "int_",
        "print",
        "Watched_",
        "x",
        "nothing",
        "LU",
        "long",
    }
    names |= {"numbers", "texts", "Any_", "count"}
    assert names == set(module.__all__)
    defaults = [each.default for each in inspect.signature(module.numbers).parameters.values()]
    assert str(defaults) == "[inf, -inf, inf, nan, 1]"
    if dispatch:
        assert module.lambda_(1, lambda_=2, from_=3) == (
            "odd::lambda",
            (1, 2),
            {"from": 3, "None": None},
        )
        with profile():
            assert module.lambda_(1, 2, from_=3, None_=4) == (
                "odd::lambda",
                (1, 2),
                {"from": 3, "None": 4},
            )
            assert module.int_(1) == ("odd::int", (1, 1, 0.5, "a\"b'c\\"), {})
        assert module.nothing() == ("odd::nothing", (), {})
