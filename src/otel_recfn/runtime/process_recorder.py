"""The process's recorder, looked up once, because every range uses it and ``backend.recorder()`` takes a lock.

Raises:
    SettingError: on import; see ``backend.choose``.
"""

from __future__ import annotations

from otel_recfn.recording.backend import recorder as chosen
from otel_recfn.recording.protocol import Recorder

recorder: Recorder = chosen()
