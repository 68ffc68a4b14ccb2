"""The package's names are what they say, whatever was imported before them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

import otel_recfn
from otel_recfn import errors, observing
from patience import PATIENCE_S


def test_no_module_of_the_package_has_the_name_of_something_public() -> None:
    """Importing a submodule sets it as an attribute of the package, where it would hide the public name."""
    modules = {module.name for module in pkgutil.iter_modules(otel_recfn.__path__)}
    assert modules.isdisjoint(otel_recfn.__all__)


def test_names_are_found_after_everything_was_imported() -> None:
    program = (
        "import otel_recfn.session.session;"
        "from otel_recfn import *; import otel_recfn;"
        "assert all(name in dir(otel_recfn) for name in otel_recfn.__all__);"
        "assert isinstance(otel_recfn.record_function, type), otel_recfn.record_function"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("module", ["otel_recfn", "otel_recfn.tracing"])
def test_a_public_module_tells_its_names_before_their_first_use(module: str) -> None:
    """As a prompt's completion asks for them."""
    program = f"import {module} as module; missing = {{*module.__all__}} - {{*dir(module)}}; assert not missing, missing"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(otel_recfn, "no_such_name")


def test_every_name_of_the_observer_runtime_is_the_packages_too() -> None:
    handed_on = {name for name, value in vars(observing).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert handed_on - {"TracedRange", "trace_instead"} <= set(otel_recfn.__all__)
    assert otel_recfn.NUM_SCOPES == len(otel_recfn.RecordScope) == 10


def test_every_error_of_the_package_can_be_imported_from_one_module() -> None:
    for module in pkgutil.walk_packages(otel_recfn.__path__, "otel_recfn."):
        if "__main__" not in module.name and "._" not in module.name:
            importlib.import_module(module.name)
    found = {errors.RecfnError}
    for kind in list(found):
        found |= set(_subclasses(kind))
    public = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert {kind.__name__ for kind in found if kind.__module__.startswith("otel_recfn.")} == {kind.__name__ for kind in public}


def _subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def test_the_module_of_errors_imports_little() -> None:
    program = "import sys; from otel_recfn.errors import SettingError; assert not {'numpy', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
