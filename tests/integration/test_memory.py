"""PyTorch's memory reports as rows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from memory_reports import BYTES, NUMBERS, nothing_is_left, profiler_of_torch, recorded, reported_to, reports  # noqa: E402
from observed import observed  # noqa: E402
from torch_programs import scripted_programs  # noqa: E402

from otel_recfn.model.events import Extra  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


def test_what_an_operator_allocates_is_a_row_below_it() -> None:
    with observed(Extra.MEMORY) as run:
        x = torch.ones(NUMBERS)
        events = run.events()
    assert x.nbytes == BYTES
    (row,) = reports(events)
    assert (row.name, row.nbytes, row.device, row.start_ns) == ("[memory]", BYTES, "cpu", row.end_ns)
    parent = next(event for event in events if event.event_id == row.parent)
    assert parent.name == "aten::empty"
    assert parent.thread_id == row.thread_id
    nothing_is_left()


def test_of_operators_everything_is_recorded_that_torch_profiler_records() -> None:
    image, layer = torch.ones(2, 3, 9, 9), torch.nn.Conv2d(3, 4, 3)

    def work() -> list[torch.Tensor]:
        x = layer(image)
        return [x, x.softmax(-1), x.logsumexp(0), x.sort().values, torch.cat([x, x]), x.flatten(2) @ x.flatten(2).mT]

    kept = [work()]
    with profiler_of_torch() as theirs:
        kept.append(work())
    with observed(Extra.MEMORY) as run:
        kept.append(work())
        ours = [event.nbytes for event in reports(run.events())]
    assert ours == reported_to(theirs)
    assert any(number < 0 for number in ours)
    nothing_is_left()


def test_a_thread_that_torchscript_forks_and_a_backward_pass_record_theirs() -> None:
    fork_and_wait = scripted_programs()[1]
    x = torch.ones(NUMBERS, requires_grad=True)
    with observed(Extra.MEMORY) as run:
        fork_and_wait(torch.ones(NUMBERS))
        assert len({event.thread_id for event in reports(run.events())}) > 1
        loss = x.cos().sum()
        run.events()
        loss.backward()
        assert BYTES in {event.nbytes for event in reports(run.events())}
    nothing_is_left()


def test_with_shapes_it_is_the_same_and_without_memory_asked_for_there_is_none() -> None:
    with observed(Extra.MEMORY | Extra.SHAPES) as run:
        assert recorded(run)
        run.start(Extra.SHAPES)
        assert not recorded(run)
        run.start(Extra.MEMORY)
        assert recorded(run)
    nothing_is_left()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_gpu_names_its_device() -> None:
    with observed(Extra.MEMORY) as run:
        torch.ones(NUMBERS, device="cuda:0")
        assert "cuda:0" in {event.device for event in reports(run.events())}
