// What the task that runs in the calling thread sees, for a refresh of the thread's context.
#pragma once
#include "core/thread_buffer.hpp"
#include "cpython/python.hpp"

namespace recfn {

// `span` is the current span's object, or null; `view.current` says what that is.
void view_task(ThreadBuffer& buffer, TaskView& view, PyObject* span);

}  // namespace recfn
