// What a refresh finds in the task's chain, and what the thread propagates from then on.
//
//   the newest living entry     what the view says               what is propagated
//   --------------------------  -------------------------------  -------------------------------
//   is a range                  the range, its context, and      its entry
//                               since when
//   is of the current span      the span's context, since when,  the entry, with that context
//                               and the range around it
//   is of another span          the next older one decides: somebody attached or detached unseen
//   none is left                the current span, as older than  a new entry of it, in no chain;
//                               all ranges                       without a span nothing
#include "parents/tasks/task_view.hpp"

#include "parents/parents.hpp"
#include "parents/tasks/propagation.hpp"
#include "parents/tasks/task_contexts.hpp"
#include "parents/tasks/task_entries.hpp"

namespace recfn {
namespace {

// Event id of the innermost range around the task's current span; 0 if there is none. PyTorch's
// ranges are on the stack, Python's in the task's chain.
uint64_t find_enclosing_range(const TaskEntry& span, const ThreadBuffer& buffer,
                              const TaskView& view) {
  TaskEntry* range = living(span.outer);
  while (range != nullptr && !is_range(*range)) range = living(range->outer);
  const uint32_t index = torch_range_index(buffer, view);
  if (index != kNotOnStack) {
    const OpenEntry& torch = buffer.stack[index];
    const auto is_after = [&](const TaskEntry& entry) {
      return began_after(buffer, view, torch, entry.since_thread, entry.since_ordinal);
    };
    const bool is_innermost = !is_after(span) && (range == nullptr || is_after(*range));
    if (is_innermost) return make_event_id(buffer.number, torch.ordinal());
  }
  if (range != nullptr) {
    note_thread_inside(*range, buffer);
    return range->event_id;
  }
  const bool is_of_thread = span.since_thread == buffer.number;
  return is_of_thread ? earlier_enclosing_call(buffer, span.since_ordinal) : 0;
}

// The entry that says of the current span what the refresh found; `latest` is what the task has of
// it. A new reference.
TaskEntry* span_with_context(TaskEntry* latest, PyObject* span, const Context& current) {
  if (current == Context{}) return nullptr;
  if (latest != nullptr && !latest->has_context) latest->set_context(current);
  if (latest != nullptr && latest->context == current) {
    Py_INCREF(latest);
    return latest;
  }
  // Attached before we were there, or its context is suppressed now.
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return nullptr;
  entry->span = Py_NewRef(span != nullptr ? span : Py_None);
  entry->set_context(current);
  return entry;
}

void view_tasks(ThreadBuffer& buffer, TaskView& view) {
  if (const PropagatedContext* propagated = propagated_to(&buffer)) {
    view.tasks[0] = propagated->task;
    return;
  }
  if (PyThreadState_Get()->context == nullptr) make_context(buffer);
  view.task_count = entered_contexts(view.tasks, kMaxTasks);
}

}  // namespace

void view_task(ThreadBuffer& buffer, TaskView& view, PyObject* span) {
  view_tasks(buffer, view);
  TaskEntry* latest = innermost(&buffer);
  while (latest != nullptr && !is_range(*latest) && latest->span != span) {
    latest = living(latest->outer);
  }
  // To propagate an entry frees another one, which may run Python.
  const Reference owned(Py_XNewRef(reinterpret_cast<PyObject*>(latest)));
  if (latest != nullptr && is_range(*latest)) {
    note_thread_inside(*latest, buffer);
    propagate(&buffer, latest);
  } else {
    // A span that the program attached may be one that shows a range: then that is around it.
    if (latest != nullptr && view.current.root == 0) {
      view.current.enclosing = find_enclosing_range(*latest, buffer, view);
    }
    TaskEntry* found = span_with_context(latest, span, view.current);
    propagate(&buffer, found);
    Py_XDECREF(found);
  }
  if (latest == nullptr) return;
  view.has_latest = true;
  view.since_thread = latest->since_thread;
  view.since_ordinal = latest->since_ordinal;
  if (!is_range(*latest)) return;
  view.range = latest->event_id;
  view.range_context = latest->context;
}

}  // namespace recfn
