// What OpenTelemetry's attach and detach do to the chain of the calling task. Needs the GIL.
#pragma once
#include "cpython/python.hpp"
#include "parents/tasks/task_chain.hpp"

namespace recfn {

// The calling task has a new current span, with a token of what undoes that, or null. A new
// reference to the span's entry; null, with no error set, where there is no memory.
Reference push_span(PyObject* span, PyObject* token);

// It has attached a context with the same current span.
void note_token(PyObject* token);

// It has detached what that token undoes.
void pop_attached(PyObject* token);

// What is current in the calling task where `attached` is attached, but for ranges: that, or, in a
// step which was entered since, a context with the step's span. Borrowed.
PyObject* context_in_step(PyObject* attached, TaskEntry* innermost);

}  // namespace recfn
