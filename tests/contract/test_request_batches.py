"""``batch``: one forward for many requests, whose traces say what they waited for and what ran."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, StatusCode

from helpers.forked_work import in_child
from helpers.running_capture import Running
from helpers.step_program import Program
from helpers.timeouts import PATIENCE_S
from otel_recfn import batch
from otel_recfn.batches.selection import Selected
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session
from otel_recfn.sinks.spans.budgets import Volume

REMOTE = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def request_context(program: Program, name: str = "request") -> Context:
    """What a request hands over, whose span has ended."""
    with program.tracer.start_as_current_span(name):
        return get_current()


def all_spans(program: Program) -> list[ReadableSpan]:
    """All that were sent, also those whose parents are another process's."""
    program.stop()
    return program.sent()


def span_in(context: Context) -> Any:
    return trace.get_current_span(context)


class Sent:
    """What was sent of the batches of a name: the spans of the forwards, and of requests, each by
    the span id of its parent.
    """

    def __init__(self, spans: Sequence[ReadableSpan], name: str = "batch") -> None:
        named = [span for span in spans if span.name == name]
        self.requests: dict[int, ReadableSpan] = {}
        self.forwards: list[ReadableSpan] = []
        for span in named:
            if "recfn.batch.position" in attributes_of(span):
                assert span.parent is not None
                assert span.parent.span_id not in self.requests
                self.requests[span.parent.span_id] = span
            else:
                self.forwards.append(span)

    @property
    def forward(self) -> ReadableSpan:
        [forward] = self.forwards
        return forward

    def of(self, context: Context) -> ReadableSpan:
        """The span of the request that handed this over."""
        return self.requests[span_in(context).get_span_context().span_id]


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def batch_attributes(span: ReadableSpan) -> dict[str, Any]:
    prefix = "recfn.batch."
    return {
        key.removeprefix(prefix): value
        for key, value in attributes_of(span).items()
        if key.startswith(prefix)
    }


def unit_attributes(span: ReadableSpan) -> dict[str, Any]:
    """Without the time that a thread waited, which depends on the machine."""
    return {
        key: value
        for key, value in attributes_of(span).items()
        if key.startswith("recfn.unit.") and key != "recfn.unit.wait_time_ns"
    }


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def ids(contexts: Sequence[Context]) -> list[int]:
    return [span_in(context).get_span_context().span_id for context in contexts]


def test_the_forward_links_to_each_request_and_each_has_a_span_for_it(program: Program) -> None:
    contexts = [request_context(program) for _ in range(3)]
    with batch(contexts), program.record_function("mm"):
        pass
    spans = program.spans()
    sent = Sent(spans)
    assert sent.forward.parent is None
    assert linked(sent.forward) == ids(contexts)
    [operator] = [span for span in spans if span.name == "mm"]
    assert operator.parent.span_id == sent.forward.context.span_id  # type: ignore[union-attr]
    assert batch_attributes(sent.forward) == {"size": 3}
    assert "recfn.step.number" not in attributes_of(sent.forward)
    for position, context in enumerate(contexts):
        span = sent.of(context)
        request = span_in(context)
        assert span.context.trace_id == request.get_span_context().trace_id
        assert span.context.trace_id != sent.forward.context.trace_id
        assert linked(span) == [sent.forward.context.span_id]
        assert (span.start_time, span.end_time) == (
            sent.forward.start_time,
            sent.forward.end_time,
        )
        assert batch_attributes(span) == {
            "size": 3,
            "position": position,
            "waited_ns": sent.forward.start_time - request.start_time,  # type: ignore[operator]
        }
    assert len({span.context.span_id for span in spans}) == len(spans) == 8


def test_it_is_below_the_current_span_and_current_in_its_block(program: Program) -> None:
    context = request_context(program)
    with program.tracer.start_as_current_span("loop"), batch([context], "forward"):
        trace.get_current_span().set_attribute("tokens", 7)
        with program.tracer.start_as_current_span("tokenize"):
            pass
    spans = {span.name: span for span in program.spans() if span.name != "forward"}
    sent = Sent(program.sent(), "forward")
    assert sent.forward.parent.span_id == spans["loop"].context.span_id  # type: ignore[union-attr]
    assert spans["tokenize"].parent.span_id == sent.forward.context.span_id  # type: ignore[union-attr]
    assert attributes_of(sent.forward)["tokens"] == 7
    assert "tokens" not in attributes_of(sent.of(context))


SUMS = {"recfn.unit.folded.count", "recfn.unit.folded.duration_ns", "recfn.unit.top"}


def test_the_requests_have_the_sums_of_the_forward(make_program: Callable[..., Program]) -> None:
    program = make_program(volume=Volume(1))
    contexts = [request_context(program) for _ in range(2)]
    with batch(contexts):
        for _ in range(4):
            with program.record_function("mm"):
                pass
        with pytest.raises(ValueError, match="no"), program.record_function("add"):
            raise ValueError("no")
    spans = program.spans()
    [own] = [unit_attributes(span) for span in spans if span.name == "mm (folded)"] or [
        unit_attributes(span) for span in spans if span.name in ("mm", "add")
    ]
    assert own.keys() == SUMS | {"recfn.unit.failed.count"}
    for context in contexts:
        assert unit_attributes(Sent(spans).of(context)) == own


def test_where_nothing_was_folded_they_say_what_ran(make_program: Callable[..., Program]) -> None:
    program = make_program(volume=Volume(100))
    context = request_context(program)
    with batch([context]), program.record_function("mm"):
        pass
    spans = program.spans()
    [own] = [span for span in spans if span.name == "mm"]
    assert unit_attributes(own) == {}
    found = unit_attributes(Sent(spans).of(context))
    assert found.keys() == {"recfn.unit.top"}
    [top] = found["recfn.unit.top"]
    assert top.startswith("mm: 1 x, ")


def test_they_have_the_sums_of_all_parts_of_the_forward(
    make_program: Callable[..., Program],
) -> None:
    program = make_program(volume=Volume(1))
    context = request_context(program)

    def run(name: str, times: int) -> None:
        for _ in range(times):
            with program.record_function(name):
                pass

    with batch([context]):
        run("mm", 3)
        assert program.session.flush(program.capture, PATIENCE_S)
        run("mm", 4)
        run("add", 1)
    spans = program.spans()
    parts = [unit_attributes(span) for span in spans if unit_attributes(span)]
    request = unit_attributes(Sent(spans).of(context))
    parts.remove(request)
    assert len(parts) == 2
    for name in ("recfn.unit.folded.count", "recfn.unit.folded.duration_ns"):
        assert request[name] == sum(part.get(name, 0) for part in parts)
    assert {one.partition(" x,")[0] for one in request["recfn.unit.top"]} == {"mm: 7", "add: 1"}


def test_nothing_is_sent_of_a_request_before_the_forward_has_ended(program: Program) -> None:
    context = request_context(program)
    with batch([context]):
        with program.record_function("mm"):
            pass
        assert program.session.flush(program.capture, PATIENCE_S)
        assert "batch" not in {span.name for span in program.sent()}
    assert program.session.flush(program.capture, PATIENCE_S)
    assert [span.name for span in program.sent()].count("batch") == 2


def remote_context(flags: str = "01", state: str = "") -> Context:
    headers = {"traceparent": f"00-{'-'.join(REMOTE)}-{flags}", "tracestate": state}
    return extract(headers, Context())


def test_what_a_request_may_hand_over(program: Program) -> None:
    contexts = [request_context(program) for _ in range(3)]
    given = [
        contexts[0],
        span_in(contexts[1]),
        span_in(contexts[2]).get_span_context(),
        remote_context(state="vendor=1"),
    ]
    with batch(given):
        pass
    sent = Sent(all_spans(program))
    assert linked(sent.forward) == [*ids(contexts), int(REMOTE[1], 16)]
    has_waited = ["waited_ns" in batch_attributes(sent.of(context)) for context in contexts]
    assert has_waited == [True, True, False]
    remote = sent.requests[int(REMOTE[1], 16)]
    assert remote.context.trace_id == int(REMOTE[0], 16)
    assert remote.context.trace_state.to_header() == "vendor=1"
    assert batch_attributes(remote) == {"size": 4, "position": 3}


class NoSpan:
    def get_span_context(self) -> Any:
        raise RuntimeError("no context")


class OtherSpan:
    def get_span_context(self) -> Any:
        return "other"


INVALID = [None, 3, "text", Context(), trace.INVALID_SPAN, trace.INVALID_SPAN_CONTEXT, NoSpan()]
INVALID += [OtherSpan(), SpanContext(1 << 200, 1, False), {}]


def test_what_is_no_context_only_counts(program: Program) -> None:
    context = request_context(program)
    with batch([*INVALID, context]):
        pass
    sent = Sent(program.spans())
    assert linked(sent.forward) == ids([context])
    assert batch_attributes(sent.forward)["size"] == len(INVALID) + 1
    assert batch_attributes(sent.of(context))["position"] == len(INVALID)


@pytest.mark.parametrize("contexts", [[], [None, None]])
def test_without_a_request_it_is_a_span_alone(program: Program, contexts: list[Any]) -> None:
    with batch(contexts):
        pass
    sent = Sent(program.spans())
    assert batch_attributes(sent.forward) == {"size": len(contexts)}
    assert (sent.requests, linked(sent.forward)) == ({}, [])


def test_an_iterator_is_read_once(program: Program) -> None:
    contexts = [request_context(program) for _ in range(2)]
    served = batch(context for context in contexts)
    for _ in range(2):  # an object may be entered again
        with served:
            pass
    assert [linked(one) for one in Sent(twice(program)).forwards] == [ids(contexts)] * 2


def twice(program: Program) -> list[ReadableSpan]:
    """The forwards alone, as each request has two spans."""
    return [span for span in program.spans() if batch_attributes(span).keys() == {"size"}]


@pytest.mark.parametrize("given", [None, 3, "contexts", Context(), trace.INVALID_SPAN])
def test_a_single_context_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"write batch\(\[context, \.\.\.\]\)"):
        batch(given)


def test_a_name_is_a_text() -> None:
    with pytest.raises(TypeError, match="takes a name"):
        batch([], 3)  # type: ignore[arg-type]


def test_requests_that_are_not_sampled_are_linked_and_have_no_span(program: Program) -> None:
    sampled = request_context(program)
    with suppress_instrumentation():
        suppressed = request_context(program)
    with batch([remote_context("00"), sampled, suppressed]):
        pass
    sent = Sent(all_spans(program))
    assert linked(sent.forward) == [int(REMOTE[1], 16), *ids([sampled, suppressed])]
    assert [*sent.requests] == ids([sampled])
    assert batch_attributes(sent.of(sampled))["position"] == 1


class DropsBatches(Sampler):
    def __init__(self) -> None:
        self.links: Sequence[Link] = ()

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
        *args: Any,
        **keywords: Any,
    ) -> SamplingResult:
        if name != "batch":
            return ALWAYS_ON.should_sample(parent_context, trace_id, name)
        self.links = links
        return ALWAYS_OFF.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        return "drops batches"


def test_where_the_forward_is_not_sampled_the_requests_say_what_is_known(
    make_program: Callable[..., Program],
) -> None:
    sampler = DropsBatches()
    program = make_program(sampler=sampler, volume=Volume(100))
    context = request_context(program)
    with batch([context]), program.record_function("mm"):
        pass
    spans = program.spans()
    assert sorted(span.name for span in spans) == ["batch", "request"]
    span = Sent(spans).of(context)
    assert batch_attributes(span).keys() == {"size", "position", "waited_ns"}
    assert (unit_attributes(span), linked(span)) == ({}, [])
    assert [link.context.span_id for link in sampler.links] == ids([context])


def test_the_parent_of_the_forward_gets_no_link(program: Program) -> None:
    other = request_context(program)
    with program.tracer.start_as_current_span("leads"):
        leads = get_current()
        with batch([leads, other]):
            pass
    sent = Sent(program.spans())
    assert sent.forward.parent.span_id == ids([leads])[0]  # type: ignore[union-attr]
    assert linked(sent.forward) == ids([other])
    for context in (leads, other):
        assert linked(sent.of(context)) == [sent.forward.context.span_id]


def test_a_request_that_is_given_twice_has_one_span(program: Program) -> None:
    first = request_context(program)
    second = request_context(program)
    with batch([first, second, span_in(first), first]):
        pass
    sent = Sent(program.spans())
    assert linked(sent.forward) == ids([first, second])
    assert batch_attributes(sent.of(first))["position"] == 0
    assert [batch_attributes(sent.of(one))["size"] for one in (first, second)] == [4, 4]


def test_a_failure_leaves_the_block_and_marks_the_spans(program: Program) -> None:
    context = request_context(program)
    error = ValueError("no memory on the device")
    with pytest.raises(ValueError, match="no memory on the device") as raised, batch([context]):
        raise error
    assert raised.value is error
    sent = Sent(program.spans())
    for span in (sent.forward, sent.of(context)):
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR,
            "ValueError: no memory on the device",
        )
        assert attributes_of(span)["error.type"] == "ValueError"
    assert [event.name for event in sent.forward.events] == ["exception"]
    assert sent.of(context).events == ()


def test_a_request_that_was_cancelled_or_has_not_ended(program: Program) -> None:
    contexts: list[Context] = []

    async def request() -> None:
        with program.tracer.start_as_current_span("request"):
            contexts.append(get_current())
            await asyncio.Event().wait()

    async def main() -> None:
        tasks = [asyncio.create_task(request()) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        async with batch(contexts):
            async with program.record_function("mm"):
                await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)

    asyncio.run(main())
    sent = Sent(program.spans())
    assert len(sent.requests) == 2
    assert all("waited_ns" in batch_attributes(sent.of(context)) for context in contexts)


def test_batches_at_once_in_tasks_and_threads(program: Program) -> None:
    contexts = [request_context(program) for _ in range(8)]

    async def serve(number: int) -> None:
        async with batch(contexts[number : number + 2], f"forward {number}"):
            await asyncio.sleep(0)
            async with program.record_function(f"mm {number}"):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(serve(0), serve(2))

    def in_thread(number: int) -> None:
        with batch(contexts[number : number + 2], f"forward {number}"):
            together.wait(PATIENCE_S)
            with program.record_function(f"mm {number}"):
                together.wait(PATIENCE_S)

    asyncio.run(main())
    together = threading.Barrier(2)
    threads = [threading.Thread(target=in_thread, args=(number,)) for number in (4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    spans = program.spans()
    operators = {span.name: span for span in spans}
    for number in range(0, 8, 2):
        sent = Sent(spans, f"forward {number}")
        assert linked(sent.forward) == ids(contexts[number : number + 2])
        assert sorted(sent.requests) == sorted(ids(contexts[number : number + 2]))
        parent = operators[f"mm {number}"].parent
        assert parent is not None
        assert parent.span_id == sent.forward.context.span_id


def test_a_batch_in_a_batch(make_program: Callable[..., Program]) -> None:
    program = make_program(volume=Volume(100))
    outer = request_context(program)
    inner = request_context(program)
    with batch([outer], "encode"):
        with program.record_function("embed"):
            pass
        with batch([inner, outer], "decode"), program.record_function("mm"):
            pass
    spans = program.spans()
    encode = Sent(spans, "encode")
    decode = Sent(spans, "decode")
    assert decode.forward.parent.span_id == encode.forward.context.span_id  # type: ignore[union-attr]
    tops = [unit_attributes(one.of(outer))["recfn.unit.top"] for one in (encode, decode)]
    assert [[text.partition(":")[0] for text in top] for top in tops] == [["embed"], ["mm"]]
    assert linked(decode.forward) == ids([inner, outer])


def test_requests_that_lie_in_a_range_have_their_span_below_that(program: Program) -> None:
    with program.tracer.start_as_current_span("request"), program.record_function("handle"):
        context = get_current()
    with batch([context]):
        pass
    spans = program.spans()
    [handle] = [span for span in spans if span.name == "handle"]
    sent = Sent(spans)
    assert [*sent.requests] == [handle.context.span_id] == linked(sent.forward)
    assert "waited_ns" in batch_attributes(sent.of(context))


def test_a_thousand_requests(make_program: Callable[..., Program]) -> None:
    """The SDK keeps as many links of a span as its limit allows; each request has its own."""
    program = make_program(volume=Volume(100), provider={"span_limits": SpanLimits(max_links=128)})
    contexts = [request_context(program) for _ in range(1000)]
    with batch(contexts), program.record_function("mm"):
        pass
    sent = Sent(program.spans())
    assert len(sent.forward.links) == 128
    positions = [batch_attributes(sent.of(context))["position"] for context in contexts]
    assert positions == [*range(1000)]
    assert all(linked(one) == [sent.forward.context.span_id] for one in sent.requests.values())
    assert program.spans_sink.counters()["added"] == 1000


def test_the_providers_limits_hold(make_program: Callable[..., Program]) -> None:
    limits = SpanLimits(max_links=0, max_span_attributes=1)
    program = make_program(provider={"span_limits": limits})
    context = request_context(program)
    with batch([context]):
        pass
    [request] = ids([context])
    [span] = [one for one in program.spans() if one.parent and one.parent.span_id == request]
    assert (span.links, len(span.attributes or {})) == ((), 1)


def test_instrumentation_that_is_suppressed_gives_no_spans(program: Program) -> None:
    context = request_context(program)
    with suppress_instrumentation(), batch([context]), program.record_function("mm"):
        pass
    assert [span.name for span in program.spans()] == ["request"]


def test_batches_that_are_open_at_the_end_are_sent(program: Program) -> None:
    context = request_context(program)
    served = batch([context])
    served.__enter__()
    with program.record_function("mm"):
        pass
    sent = Sent(program.spans())
    served.__exit__(None, None, None)
    for span in (sent.forward, sent.of(context)):
        assert attributes_of(span)["recfn.partial"] is True
    assert sent.of(context).end_time == sent.forward.end_time
    assert len(program.sent()) == 4


def test_a_batch_that_began_before_the_recording_is_a_plain_block(
    make_program: Callable[..., Program],
) -> None:
    served = batch([remote_context()])
    served.__enter__()
    program = make_program()
    with program.record_function("mm"):
        pass
    served.__exit__(None, None, None)
    assert "batch" not in {span.name for span in program.spans()}


def test_a_batch_that_is_open_at_a_fork_is_the_parents(program: Program) -> None:
    context = request_context(program)

    def child() -> None:
        served.__exit__(None, None, None)
        assert program.session.flush(program.capture, PATIENCE_S)
        forked = Sent(program.sent())
        assert forked.requests == {}
        with batch([context], "in the child"):
            pass
        assert program.session.flush(program.capture, PATIENCE_S)
        assert len(Sent(program.sent(), "in the child").requests) == 1

    served = batch([context])
    served.__enter__()
    in_child(child)
    served.__exit__(None, None, None)
    assert len(Sent(program.spans()).requests) == 1


class Failing(RandomIdGenerator):
    """Gives ids to the program's spans and, in other threads, none."""

    def __init__(self) -> None:
        self._program = threading.get_ident()

    def generate_span_id(self) -> int:
        if threading.get_ident() != self._program:
            raise RuntimeError("no id")
        return super().generate_span_id()


def test_requests_whose_spans_can_not_be_made_are_counted(
    make_program: Callable[..., Program],
) -> None:
    program = make_program(provider={"id_generator": Failing()})
    context = request_context(program)
    with batch([context]), program.record_function("mm"):
        pass
    program.session.stop(program.capture, PATIENCE_S)
    counts = program.spans_sink.counters()
    assert (counts["added"], counts["dropped.error"]) == (1, 1)
    assert counts["recorded"] == counts["exported"] == 2


class RaisingProcessor(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("no start")


def test_where_a_processor_raises_the_block_runs_and_requests_say_what_is_known(
    program: Program,
) -> None:
    context = request_context(program)
    program.provider.add_span_processor(RaisingProcessor())
    with batch([context]), program.record_function("mm"):
        pass
    span = Sent(all_spans(program)).of(context)
    assert batch_attributes(span).keys() == {"size", "position", "waited_ns"}
    assert linked(span) == []


def test_a_profile_alone_has_a_range_of_its_name(recorder: Recorder) -> None:
    running = Running(Session(recorder), Selected())
    with batch([remote_context(), None]), batch([], "inner"):
        pass
    [outer, inner] = running.stop().sink.events()
    assert (outer.name, inner.name, inner.parent) == ("batch", "inner", outer.event_id)
    assert (outer.step_number, inner.step_number) == (-1, -1)


def test_without_a_recording_it_is_a_plain_block() -> None:
    token = attach(Context())
    try:
        with batch([remote_context()]) as served:
            assert trace.get_current_span() is trace.INVALID_SPAN
        with pytest.raises(ValueError, match="no"), served:
            raise ValueError("no")
    finally:
        detach(token)
