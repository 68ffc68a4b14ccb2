#include "parents/tasks/attached_spans.hpp"

namespace recfn {
namespace {

// The newest entry of the task that was attached with that token; null where there is none.
TaskEntry* find_attached(PyObject* token) {
  TaskEntry* entry = innermost();
  while (entry != nullptr && entry->token != reinterpret_cast<uint64_t>(token)) {
    entry = living(entry->outer);
  }
  return entry;
}

}  // namespace

Reference push_span(PyObject* span, PyObject* token) {
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return Reference();
  Reference owned(reinterpret_cast<PyObject*>(entry));
  entry->span = Py_NewRef(span);
  // As a number: a reference would keep the token, and with it the context before, alive.
  entry->token = reinterpret_cast<uint64_t>(token);
  since_now(*entry);
  push(registry().existing(), entry, innermost());
  return owned;
}

void note_token(PyObject* token) {
  // That entry's token was freed, as the new one has its address: to detach the new one is not to
  // end that entry's span.
  if (TaskEntry* gone = find_attached(token)) gone->token = 0;
}

void pop_attached(PyObject* token) {
  if (TaskEntry* entry = find_attached(token)) pop_span(entry);
}

PyObject* context_in_step(PyObject* attached, TaskEntry* innermost) {
  for (TaskEntry* entry = innermost; entry != nullptr; entry = living(entry->outer)) {
    if (!is_range(*entry) && entry->attached == attached) return entry->exposed;
  }
  return attached;
}

}  // namespace recfn
