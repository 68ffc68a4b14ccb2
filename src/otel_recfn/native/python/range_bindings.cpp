#include "python/range_bindings.hpp"

#include "core/registry.hpp"
#include "python/python_stack.hpp"
#include "python/task_entries.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

// The calling thread's buffer, or null, counted as a drop.
ThreadBuffer* buffer_or_drop() {
  ThreadBuffer* buffer = registry().current();
  if (buffer == nullptr) globals().dropped_without_buffer.fetch_add(1, std::memory_order_relaxed);
  return buffer;
}

bool has_no_scopes(uint32_t source) { return source < 32 && (kSourcesWithoutScopes >> source & 1) != 0; }

PyObject* as_event_id(uint64_t event_id) { return PyLong_FromUnsignedLongLong(event_id); }

PyObject* begin(PyObject*, PyObject* args) {
  PyObject *name, *module, *shapes, *dtypes;
  unsigned int scope, source, flags;
  long long sequence_nr, debug_handle;
  unsigned long long forward_thread_id, handle;
  if (!PyArg_ParseTuple(args, "UIIUILKKLUU", &name, &scope, &source, &module, &flags, &sequence_nr, &forward_thread_id, &handle,
                        &debug_handle, &shapes, &dtypes)) {
    return nullptr;
  }
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  const bool selected = has_no_scopes(source) ? (recording & kRecordingBit) != 0 : selects(recording, scope);
  ThreadBuffer* buffer = selected ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 name_text(name, kMaxNameBytes), module_text(module, kMaxNameBytes);
  const Utf8 shapes_text(shapes, UINT32_MAX), dtypes_text(dtypes, UINT32_MAX);
  const bool fits = shapes_text.text().size <= kMaxShapesBytes && dtypes_text.text().size <= kMaxShapesBytes;
  char stack[kMaxStackBytes];
  RarePrelude rare;
  rare.module = module_text.text();
  if (fits) rare.shapes_text = shapes_text.text(), rare.dtypes_text = dtypes_text.text();
  if ((recording & kStackBit) != 0 && scope != kBackwardFunctionScope) rare.stack = {stack, python_stack(stack, sizeof stack)};
  Begin range;
  range.name = name_text.text();
  range.scope = scope;
  range.flags = (flags & kEventFlags) | (source << kSourceShift & kSourceMask);
  range.handle = handle, range.sequence_nr = sequence_nr, range.forward_thread_id = forward_thread_id;
  range.has_numbers = handle != 0 || sequence_nr != -1;
  range.prelude.debug_handle = debug_handle;
  if (rare_words(rare) != 0) range.prelude.rare = &rare;
  const uint64_t event_id = begin_range<false>(globals(), *buffer, range, true);
  if (event_id != 0) keep_open_range(*buffer, event_id, scope, source, (flags & kAsync) == 0);
  return as_event_id(event_id);
}

PyObject* end(PyObject*, PyObject* args) {
  unsigned long long event_id;
  PyObject* error = nullptr;
  unsigned int flags = 0;
  if (!PyArg_ParseTuple(args, "K|UI", &event_id, &error, &flags)) return nullptr;
  const uint32_t shown = forget_open_range(event_id);
  ThreadBuffer* buffer = event_id != 0 ? registry().current() : nullptr;
  if (buffer != nullptr) {
    const Utf8 error_text(error, kMaxErrorBytes);
    const Text text = error_text.text();
    end_range(globals(), *buffer, event_id, 0, shown | (flags & kEventFlags) | (text.size != 0 ? uint32_t{kError} : 0u), text);
  }
  Py_RETURN_NONE;
}

PyObject* mark(PyObject*, PyObject* name) {
  if (!PyUnicode_Check(name)) return PyErr_Format(PyExc_TypeError, "mark takes a name, a str, not %s", Py_TYPE(name)->tp_name);
  const bool recording = (globals().recording.load(std::memory_order_acquire) & kRecordingBit) != 0;
  ThreadBuffer* buffer = recording ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(name, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMark, text.text(), 0, kMayLook));
}

PyObject* memory(PyObject*, PyObject* args) {
  long long nbytes;
  PyObject* device;
  if (!PyArg_ParseTuple(args, "LU", &nbytes, &device)) return nullptr;
  const bool recording = (globals().recording.load(std::memory_order_acquire) & kRecordingBit) != 0;
  const bool wanted = recording && (globals().extras.load() & kMemoryExtra) != 0;
  ThreadBuffer* buffer = wanted ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(device, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMemory, text.text(), nbytes, kMayLook));
}

PyMethodDef functions[] = {
    {"begin", begin, METH_VARARGS,
     "begin(name, scope, source, module, flags, sequence_nr, forward_thread_id, handle, debug_handle, shapes, dtypes) -> event id, "
     "0 when not recorded."},
    {"end", end, METH_VARARGS, "end(event_id, error='', flags=0)"},
    {"mark", mark, METH_O, "mark(name) -> event id, 0 when not recorded."},
    {"memory", memory, METH_VARARGS, "memory(nbytes, device) -> event id, 0 when not recorded."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_ranges(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
