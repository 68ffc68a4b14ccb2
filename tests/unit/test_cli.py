"""``otel-recfn``, with one fact of the surroundings changed at a time."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn import cli
from otel_recfn.cli import doctor
from otel_recfn.errors import ObserverUnavailable
from otel_recfn.pytorch import details, observer_build
from otel_recfn.version import __version__


@pytest.fixture(autouse=True)
def plain_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("OTEL_RECFN_CACHE_DIR", str(tmp_path / "cache"))
    for part in ("ENDPOINT", "PROTOCOL", "TRACES_ENDPOINT", "TRACES_PROTOCOL"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{part}", raising=False)
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "CXX"):
        monkeypatch.delenv(name, raising=False)


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise ObserverUnavailable("torch is not installed here; install it")

    monkeypatch.setattr(observer_build, "find_torch", find)


def test_the_whole_doctor_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "otel_recfn.cli", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    checks = re.findall(r"^(ok|no|--)  (.{12})(.*)", done.stdout, re.MULTILINE)
    assert [name.strip() for _, name, _ in checks] == [*doctor.examinations()]
    assert done.returncode == (1 if any(mark == "no" for mark, _, _ in checks) else 0)
    assert __version__ in checks[0][2]
    assert "could not be examined" not in done.stdout


def test_the_first_finding_needs_nothing_but_python() -> None:
    program = """
import sys
from otel_recfn.cli.doctor import examine
names = ("opentelemetry", "numpy", "otel_recfn.settings")
print(next(examine())[0], [name for name in names if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "package []\n"


def test_how_a_finding_is_told() -> None:
    output = [
        doctor.line("first", True, "fine"),
        doctor.line("second", None, "so so"),
        doctor.line("third", False, "bad;\ndo this"),
    ]
    assert output == [
        "ok  first       fine",
        "--  second      so so",
        "no  third       bad;\n                do this",
    ]


def examines(monkeypatch: pytest.MonkeyPatch, **examinations: Callable[[], doctor.Finding]) -> None:
    monkeypatch.setattr(doctor, "examinations", lambda: examinations)


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    examines(monkeypatch, good=lambda: (True, "yes"))
    assert cli.main(["doctor"]) == 0
    assert "PyTorch's operators can become spans here." in capsys.readouterr().out
    examines(monkeypatch, broken=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert cli.main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "no  broken      could not be examined: ZeroDivisionError" in output
    assert "Not everything works here: broken." in output


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PATH", "")
    ok, text = doctor.observer()
    assert ok is False
    assert "cannot be built: no C++ compiler found" in text
    assert "install" in text


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    assert doctor.torch() == (False, "torch is not installed here; install it")
    assert [check()[0] for check in LOADING] == [False, None]


def test_an_unsafe_cache(tmp_path: Path) -> None:
    assert doctor.cache()[0]
    (tmp_path / "cache").chmod(0o777)
    check = doctor.cache()
    assert check[0] is False
    assert "OTEL_RECFN_CACHE_DIR" in check[1]


LOADING = (doctor.observer, doctor.callbacks)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch and both libraries, which load and find all; and no process that needs torch for
    it.

    Where they are.
    """
    (tmp_path / "torch.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(observer_build, "find_torch", lambda: SimpleNamespace(directory=tmp_path))
    monkeypatch.setattr(
        observer_build, "find_built", lambda library: tmp_path / f"{library.name}.so"
    )
    monkeypatch.setattr(doctor, "LOAD_OBSERVER", "import torch; print('shapes flops')")
    monkeypatch.setattr(doctor, "LOAD_CALLBACKS", "import torch; print('inputs')")
    return tmp_path


def test_what_is_found_in_torch(libraries: Path) -> None:
    assert doctor.observer() == (
        True,
        f"{libraries}/torch_observer.so, found in this torch: shapes, flops",
    )
    assert doctor.callbacks() == (
        True,
        f"{libraries}/torch_callbacks.so, found in this torch: inputs",
    )


def test_what_cannot_be_loaded(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOAD_OBSERVER", "raise OSError('undefined symbol')")
    monkeypatch.setattr(doctor, "LOAD_CALLBACKS", "raise ImportError('undefined symbol')")
    text = f"{libraries}/torch_observer.so cannot be loaded: OSError: undefined symbol"
    assert doctor.observer() == (False, text)
    assert doctor.callbacks()[0] is None  # spans and files do without
    assert f"{libraries}/torch_callbacks.so cannot be loaded" in doctor.callbacks()[1]


def test_what_takes_its_process_down_is_told(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LOAD_OBSERVER", "import os; os._exit(3)")
    assert [check()[0] for check in LOADING] == [False, True]
    assert "the process ended with code 3" in doctor.observer()[1]


def test_torch_that_cannot_be_imported(libraries: Path) -> None:
    (libraries / "torch.py").write_text("raise ImportError('libtorch_cpu.so is missing')")
    checks = [check() for check in LOADING]
    assert [ok for ok, _ in checks] == [False, None]
    assert all("ImportError: libtorch_cpu.so is missing" in text for _, text in checks)


def test_what_this_torch_lacks_is_told_as_what_is_lost(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor, "LOAD_OBSERVER", "print('launches -memory torchscript_stack -step_hook')"
    )
    assert doctor.observer()[0] is None  # operators are recorded all the same
    assert details.OPERATORS["memory"].lost in doctor.observer()[1]
    assert details.OPERATORS["launches"].lost not in doctor.observer()[1]
    assert details.PYTHON["step_hook"].lost in doctor.observer()[1]


def test_what_is_not_built_is_not_loaded(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_build, "find_built", lambda _library: None)
    monkeypatch.setattr(doctor, "LOAD_OBSERVER", "raise OSError('it was loaded')")
    check = doctor.observer()
    assert check[0]
    assert "otel-recfn build" in check[1]


def test_sdk_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.sdk()[0]
    monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
    assert doctor.sdk()[0] is False


@pytest.mark.parametrize(
    ("asked", "ok"),
    [("", None), ("otlp", True), ("otlp, console", True), ("none", False), ("otlp,zipkin9", False)],
)
def test_exporters(monkeypatch: pytest.MonkeyPatch, asked: str, ok: bool | None) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", asked)
    check = doctor.exporters()
    assert check[0] is ok
    assert "otlp_proto_http" in check[1]


def test_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{port}/v1/traces"
        )
        monkeypatch.setattr(doctor, "REQUEST_SECONDS", 0.2)
        check = doctor.endpoint()
        assert check[0] is False
        assert "something listens there, but takes no OTLP request" in check[1]
        assert "OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _HEADERS" in check[1]
    check = doctor.endpoint()
    assert check[0] is False
    assert "collector" in check[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:no-port")
    assert doctor.endpoint()[0] is False


def test_the_default_endpoint_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(address: tuple[str, int], timeout: float) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert doctor.endpoint()[0] is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert doctor.endpoint()[0] is None
    assert asked == [("localhost", 4317), ("localhost", 4318)]


def test_build_prints_the_path_or_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observer_build, "build", lambda library: Path(f"/cache/{library.name}.so"))
    assert cli.main(["build"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "/cache/torch_observer.so\n/cache/torch_callbacks.so\n"
    assert re.search(r"^otel-recfn build: done in \d+\.\d s$", printed.err, re.MULTILINE)
    monkeypatch.undo()
    without_torch(monkeypatch)
    assert cli.main(["build"]) == 1
    assert "torch is not installed here; install it" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"otel-recfn {__version__}\n"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("after", ["", ":no-port", "[", ":1/#?"])
def test_the_doctor_tells_no_secret(
    protocol: str,
    listens: bool,
    after: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets = ("some-user", "passw0rd", "k3y-of-query", "t0ken")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        endpoint = (
            f"http://some-user:passw0rd/@127.0.0.1{after or f':{port}'}/v1/traces?key=k3y-of-query"
        )
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer t0ken\u20ac,t0ken")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_RECFN_SPAN_EXPORTER", endpoint)
        monkeypatch.setattr(doctor, "REQUEST_SECONDS", 0.2)
        output = "\n".join(
            [
                doctor.examine_safely(doctor.examinations()[name])[1]
                for name in ("settings", "endpoint")
            ]
        )
    assert [secret for secret in secrets if secret in output + caplog.text] == []
    assert "http://127.0.0.1" in output
