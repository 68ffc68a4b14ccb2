"""The package's names are what they say, whatever was imported before them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import otel_recfn
from otel_recfn import observing
from patience import PATIENCE_S


def test_no_module_of_the_package_has_the_name_of_something_public() -> None:
    """Importing a submodule sets it as an attribute of the package, where it would hide the public name."""
    modules = {module.name for module in pkgutil.iter_modules(otel_recfn.__path__)}
    assert modules.isdisjoint(otel_recfn.__all__)


def test_names_are_found_after_everything_was_imported() -> None:
    program = (
        "import otel_recfn.session, otel_recfn.recording.backend as backend; backend.recorder();"
        "from otel_recfn import *; import otel_recfn;"
        "assert all(name in dir(otel_recfn) for name in otel_recfn.__all__);"
        "assert isinstance(otel_recfn.record_function, type), otel_recfn.record_function"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(otel_recfn, "no_such_name")


def test_every_name_of_the_observer_runtime_is_the_packages_too() -> None:
    assert set(observing.__all__) <= set(otel_recfn.__all__)
    assert otel_recfn.NUM_SCOPES == len(otel_recfn.RecordScope) == 10
