// The one reading of Python's context from an operator's thread: what is current there, by a reader
// written in Python.
//
//     context_version   changed? ─► refresh_context (parents.hpp) ─► read_context
//     without the GIL                                                 │
//                                   what another thread propagates ◄──┤ needs no GIL
//                                   the thread noted, once            │
//                                   readers.current ─► Context        │ with the GIL
//                                   view_task ─► the task's entries ◄─┘
#include "parents/tasks/context_reader.hpp"

#include "core/registry.hpp"
#include "cpython/calls_without_dynamo.hpp"
#include "parents/tasks/propagation.hpp"
#include "parents/tasks/task_contexts.hpp"
#include "parents/tasks/task_view.hpp"

namespace recfn {
namespace {

ContextReaders readers;

// The names of a ContextReading's attributes. They are interned and stay, as those in Python code,
// since types remember where they found such names.
struct ReadingNames {
  PyObject *trace_id, *span_id, *flags, *enclosing, *root, *span;

  // False with an error set where there is no memory.
  bool make() {
    return make(trace_id, "trace_id") && make(span_id, "span_id") && make(flags, "flags") &&
           make(enclosing, "enclosing") && make(root, "root") && make(span, "span");
  }

 private:
  static bool make(PyObject*& name, const char* text) {
    if (name == nullptr) name = PyUnicode_InternFromString(text);
    return name != nullptr;
  }
};

ReadingNames reading_names;

// The lower 64 bits of a number. False with an error set where it is none.
bool lower_bits(PyObject* number, uint64_t& bits) {
  bits = PyLong_AsUnsignedLongLongMask(number);
  return bits != UINT64_MAX || PyErr_Occurred() == nullptr;
}

bool number_of(PyObject* reading, PyObject* name, uint64_t& number) {
  const Reference found(PyObject_GetAttr(reading, name));
  return found && lower_bits(found.get(), number);
}

bool trace_id_of(PyObject* reading, Context& context) {
  const Reference trace_id(PyObject_GetAttr(reading, reading_names.trace_id));
  const Reference word_bits(trace_id ? PyLong_FromLong(64) : nullptr);
  const Reference high(word_bits ? PyNumber_Rshift(trace_id.get(), word_bits.get()) : nullptr);
  return high && lower_bits(high.get(), context.trace_high) &&
         lower_bits(trace_id.get(), context.trace_low);
}

// What a ContextReading says. False with an error set where it can't be read.
bool context_of(PyObject* reading, Context& context) {
  return trace_id_of(reading, context) &&
         number_of(reading, reading_names.span_id, context.span_id) &&
         number_of(reading, reading_names.flags, context.flags) &&
         number_of(reading, reading_names.enclosing, context.enclosing) &&
         number_of(reading, reading_names.root, context.root);
}

// A call may let another thread replace what is called: it is held meanwhile.
void note_thread(ThreadBuffer& buffer) {
  buffer.identity.is_named = true;
  const Reference noter(Py_NewRef(readers.thread));
  const Reference number(PyLong_FromUnsignedLongLong(buffer.number));
  PyObject* const arguments[] = {number.get()};
  const Reference result(number ? call_without_dynamo(noter.get(), arguments, 1) : nullptr);
  buffer.refresh.is_python_thread = result.get() == Py_True;
}

// A failure of the reader's own ends here. What a signal handler of the program's raised meanwhile
// goes on to the program.
void pass_on_error() {
  Reference raised(take_raised());
  if (!raised) return;
  if (PyErr_GivenExceptionMatches(raised.get(), PyExc_Exception)) {
    PyObject* const error = raised.get();
    const Reference answer(call_without_dynamo(readers.is_the_programs, &error, 1));
    if (!answer) return raise_in_main_thread(take_raised());
    if (answer.get() != Py_True) return;
  }
  raise_in_main_thread(raised.release());
}

// A new reference; null where there is nothing to read.
PyObject* call_context_reader() {
  if (readers.current == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  const Reference reader(Py_NewRef(readers.current));
  return call_without_dynamo(reader.get(), nullptr, 0);
}

void view_current(ThreadBuffer& buffer, TaskView& view) {
  if (!buffer.identity.is_named && readers.thread != nullptr) note_thread(buffer);
  const Reference reading(call_context_reader());
  Reference span;
  if (reading && reading.get() != Py_None) {
    Context context;
    if (context_of(reading.get(), context)) {
      span = Reference(PyObject_GetAttr(reading.get(), reading_names.span));
    }
    if (span) view.current = context;
  }
  pass_on_error();
  view_task(buffer, view, span.get());
}

void replace(PyObject*& reader, PyObject* by) {
  PyObject* before = reader;
  reader = by == Py_None ? nullptr : Py_NewRef(by);
  Py_XDECREF(before);
}

}  // namespace

uint64_t context_version(const ThreadBuffer& buffer) {
  if (const PropagatedContext* propagated = propagated_to(&buffer)) {
    return version_with_sampling(globals(), propagated_version(*propagated));
  }
  const PyThreadState* state = PyGILState_GetThisThreadState();
  return state != nullptr ? context_version_of(globals(), state) : 0;
}

void read_context(ThreadBuffer& buffer, TaskView& view) {
  const PropagatedContext* propagated = propagated_to(&buffer);
  if (propagated != nullptr && view_propagated(*propagated, view)) return;
  if (!python_knows_this_thread()) return;
  const WithGil python;
  view_current(buffer, view);
}

bool set_context_readers(const ContextReaders& wanted) {
  if (!reading_names.make()) return false;
  replace(readers.current, wanted.current);
  replace(readers.thread, wanted.thread);
  replace(readers.is_the_programs, wanted.is_the_programs);
  return true;
}

bool has_context_readers() { return readers.current != nullptr || readers.thread != nullptr; }

}  // namespace recfn
