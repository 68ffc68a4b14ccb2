"""What the recorder records: what those captures want together that don't end."""

from __future__ import annotations

from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.captures import Captures
from otel_recfn.session.draining import Draining
from otel_recfn.support.seen_spans import seen_spans


class Recording:
    """Starts and stops the recorder. The session lets one thread at a time do so."""

    def __init__(self, recorder: Recorder, captures: Captures, draining: Draining) -> None:
        self._recorder, self._captures, self._draining = recorder, captures, draining
        self._sampled_alone = False
        """What the recorder was told last."""

    def follow(self, *, alone: bool = False) -> None:
        """Have the recorder record what the captures want now.

        Args:
            alone: the only capture begins: nothing that was recorded before is for it.
        """
        if not (alone or self._captures.all_end or self._recorder.recording):
            self._drain_earlier()
        wanted = None if self._captures.all_end else self._captures.wanted()
        if wanted is None:
            self._recorder.stop()
            return
        seen_spans.keep_alive(wanted.spans_told)
        self._recorder.start(wanted.scopes, self._captures.buffer_bytes(), wanted.extras, wanted.sampled_alone)
        self._sampled_alone = wanted.sampled_alone

    def _drain_earlier(self) -> None:
        """A recording begins: captures that are ending, or that it was stopped under, get what is left of the earlier one.

        Its open ranges would be given up otherwise, whose children they may have already.
        """
        with self._draining.held(0.0) as held:
            if held:
                self._draining.drain(close_open=True)

    def follow_samplers(self) -> None:
        """The same where it has changed whether they want ranges in spans that are not sampled."""
        wanted = self._captures.wanted()
        if wanted is not None and wanted.sampled_alone != self._sampled_alone:
            self.follow()
