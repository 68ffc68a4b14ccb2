"""The tests of ``record_function`` once more while a Python callback observes: its ranges go
through RecordFunction.
"""

from __future__ import annotations

import pytest
from test_record_function import *  # noqa: F403
from test_record_function_async import *  # noqa: F403
from test_record_function_decorator import *  # noqa: F403

from helpers.runtime_helpers import Notes
from otel_recfn.callbacks.registry import add_global_callback
from otel_recfn.recording.recorder import Recorder


@pytest.fixture(autouse=True)
def observed(runtime: Recorder) -> None:
    """What is recorded stays the same."""
    add_global_callback(Notes().callback())
