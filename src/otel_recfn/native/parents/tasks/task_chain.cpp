// The chain in the task's context, and the memory of its entries.
#include "parents/tasks/task_chain.hpp"

#include <cstddef>
#include <cstring>
#include <utility>

#include "cpython/context_variables.hpp"
#include "parents/tasks/propagation.hpp"

namespace recfn {
namespace {

PyObject* innermost_var = nullptr;
uint64_t last_serial = 0;

// Borrowed: the task's context holds it, or what launched the thread's work.
TaskEntry* value_in_task(const ThreadBuffer* buffer) {
  if (const PropagatedContext* propagated = propagated_to(buffer)) {
    return static_cast<TaskEntry*>(propagated->entry);
  }
  PyObject* value = nullptr;
  if (PyContextVar_Get(innermost_var, nullptr, &value) < 0) PyErr_Clear();
  Py_XDECREF(value);
  const bool is_entry = value != nullptr && Py_TYPE(value) == &TaskEntryType;
  return is_entry ? reinterpret_cast<TaskEntry*>(value) : nullptr;
}

// A span is propagated by the next refresh, which knows its context.
void set_value_in_task(ThreadBuffer* buffer, TaskEntry* entry) {
  if (propagated_to(buffer) != nullptr) return propagate(buffer, entry);
  if (entry != nullptr && entry->has_context) propagate_later(buffer, entry);
  PyObject* const value = entry != nullptr ? reinterpret_cast<PyObject*>(entry) : Py_None;
  PyObject* const token = set_variable(innermost_var, value);
  if (token == nullptr) return PyErr_Clear();
  Py_DECREF(token);
}

void set_outer(TaskEntry& entry, TaskEntry* outer) {
  if (entry.outer == outer) return;
  Py_XINCREF(outer);
  Py_XSETREF(entry.outer, outer);
}

// Entries live for one range each: a few are kept for the next.
constexpr int kMaxSpareEntries = 16;
TaskEntry* spare_entries[kMaxSpareEntries];
int spare_entry_count = 0;

// One after the other: a long chain freed by recursion would overflow the C stack.
void release_chain(TaskEntry* entry) {
  while (entry != nullptr && Py_REFCNT(reinterpret_cast<PyObject*>(entry)) == 1) {
    TaskEntry* outer = std::exchange(entry->outer, nullptr);
    Py_DECREF(reinterpret_cast<PyObject*>(entry));
    entry = outer;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(entry));
}

// Clears memory in pieces, for each of which the compiler takes a few wide stores: all at once it
// would take an instruction that is slow to start, and a store for each member of an entry costs a
// range 15 nanoseconds more.
template <size_t size>
inline void clear(char* bytes) {
  constexpr size_t kPiece = 64;
  if constexpr (size > kPiece) {
    std::memset(bytes, 0, kPiece);
    clear<size - kPiece>(bytes + kPiece);
  } else {
    std::memset(bytes, 0, size);
  }
}

// An object that lives, or null where there is no memory. What it had before is still there.
TaskEntry* allocate_entry() {
  if (spare_entry_count > 0) {
    TaskEntry* const entry = spare_entries[--spare_entry_count];
    PyObject_Init(reinterpret_cast<PyObject*>(entry), &TaskEntryType);
    return entry;
  }
  TaskEntry* const entry = PyObject_New(TaskEntry, &TaskEntryType);
  if (entry == nullptr) PyErr_Clear();
  return entry;
}

// A chain is walked at each 64th entry only: so a push pays for the look at one.
constexpr uint32_t kShortenEvery = 64;
constexpr uint32_t kMaxSpans = 64;

// Leaves out what is over, and of the spans all but the newest: tasks that launch tasks inherit
// chains, and programs attach without ever detaching. Returns how long the chain is then.
uint32_t shorten(TaskEntry* newest) {
  const uint64_t epoch = current_epoch();
  uint32_t length = 1;
  uint32_t spans = 0;
  // Freeing a span may run Python, a signal handler's too, which may end what we stand at and
  // shorten the same chain: so the walk owns its entry.
  Reference owned(Py_NewRef(reinterpret_cast<PyObject*>(newest)));
  for (TaskEntry* entry = newest;; ++length) {
    TaskEntry* outer = living(entry->outer, epoch);
    while (outer != nullptr && !is_range(*outer) && ++spans > kMaxSpans) {
      outer = living(outer->outer, epoch);
    }
    Reference next(Py_XNewRef(reinterpret_cast<PyObject*>(outer)));
    set_outer(*entry, outer);
    if (outer == nullptr) return length;
    entry = outer;
    owned = std::move(next);
  }
}

}  // namespace

TaskEntry* innermost(const ThreadBuffer* buffer) { return living(value_in_task(buffer)); }

TaskEntry* new_entry() {
  TaskEntry* const entry = allocate_entry();
  if (entry == nullptr) return nullptr;
  clear<sizeof *entry - offsetof(TaskEntry, outer)>(reinterpret_cast<char*>(&entry->outer));
  entry->serial = ++last_serial;
  entry->cpu_began_ns = -1;
  return entry;
}

void free_entry(PyObject* self) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  release_chain(entry->outer);
  Py_XDECREF(entry->range);
  Py_XDECREF(entry->span);
  expose_nothing(*entry);
  Py_XDECREF(entry->name);
  if (spare_entry_count < kMaxSpareEntries) {
    spare_entries[spare_entry_count++] = entry;
  } else {
    PyObject_Free(self);
  }
}

void push(ThreadBuffer* buffer, TaskEntry* entry, TaskEntry* outer) {
  set_outer(*entry, outer);
  entry->length = outer != nullptr ? outer->length + 1 : 1;
  if (entry->length % kShortenEvery == 0) entry->length = shorten(entry);
  set_value_in_task(buffer, entry);
}

void pop_span(TaskEntry* entry) {
  ThreadBuffer* buffer = registry().existing();
  // The task's context may have the only one.
  const Reference owned(Py_NewRef(reinterpret_cast<PyObject*>(entry)));
  if (innermost(buffer) == entry) set_value_in_task(buffer, living(entry->outer));
  stop_propagating(buffer, *entry);
}

void make_context(ThreadBuffer& buffer) { set_value_in_task(&buffer, nullptr); }

void expose_nothing(TaskEntry& entry) {
  Py_CLEAR(entry.attached);
  Py_CLEAR(entry.exposed);
}

uint64_t next_serial() { return ++last_serial; }

bool start_task_chain() {
  innermost_var = PyContextVar_New("otel_recfn_task", nullptr);
  return innermost_var != nullptr;
}

}  // namespace recfn
