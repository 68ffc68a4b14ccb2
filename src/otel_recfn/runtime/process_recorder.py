"""The process's recorder, looked up once: ``recorder()`` of the backend takes a lock, and this is on the way of every range.

Raises:
    SettingError: on import; see ``backend.choose``.
"""

from __future__ import annotations

from otel_recfn.recording.backend import recorder as chosen
from otel_recfn.recording.protocol import Recorder

recorder: Recorder = chosen()
