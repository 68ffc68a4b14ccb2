// Ranges, marks and changes of memory, as Python tells the recorder of them.
#include "core/begin_end.hpp"
#include "core/registry.hpp"
#include "python/arguments.hpp"
#include "python/python_stack.hpp"
#include "python/task_entries.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace recfn {
namespace {

// The calling thread's buffer, or null, counted as a drop.
ThreadBuffer* buffer_or_drop() {
  ThreadBuffer* buffer = registry().current();
  if (buffer == nullptr) globals().dropped_without_buffer.fetch_add(1, std::memory_order_relaxed);
  return buffer;
}

// The same, or null where nothing is recorded.
ThreadBuffer* recording_buffer() {
  return (globals().recording.load(std::memory_order_acquire) & kRecordingBit) != 0
             ? buffer_or_drop()
             : nullptr;
}

bool has_no_scopes(uint32_t source) {
  return source < 32 && (kSourcesWithoutScopes >> source & 1) != 0;
}

// Of a module's call, which is one of the traced calls.
std::string call_site_of(uint32_t source, Text name) {
  const std::string_view prefix = kCallPrefixes[kModuleSource];
  const bool is_call = source == kModuleSource &&
                       std::string_view(name.data, name.size).substr(0, prefix.size()) == prefix;
  return is_call && call_site_now != nullptr ? call_site_now() : std::string();
}

PyObject* as_event_id(uint64_t event_id) { return PyLong_FromUnsignedLongLong(event_id); }

constexpr size_t kBeginParameters = 13, kEndParameters = 5;
constexpr Arguments<kBeginParameters>::Names kOfBegin = {
    "name",   "scope",        "source", "module", "flags",       "sequence_nr", "forward_thread_id",
    "handle", "debug_handle", "shapes", "dtypes", "step_number", "code"};
constexpr Arguments<kEndParameters>::Names kOfEnd = {"event_id", "error", "flags", "stacktrace",
                                                     "attributes"};

// The arguments of begin().
struct BeginCall {
  PyObject *name = nullptr, *module = nullptr, *shapes = nullptr, *dtypes = nullptr,
           *code = nullptr;
  uint32_t scope = 0, source = 0, flags = 0;
  int64_t step_number = -1;
  Begin range;

  bool read(PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    Arguments<kBeginParameters> given(kOfBegin);
    return given.take(args, count, keywords) && given.read(0, &name) && given.read(1, &scope) &&
           given.read(2, &source) && given.read(3, &module) && given.read(4, &flags) &&
           given.read(5, &range.sequence_nr) && given.read(6, &range.forward_thread_id) &&
           given.read(7, &range.handle) && given.read(8, &range.prelude.debug_handle) &&
           given.read(9, &shapes) && given.read(10, &dtypes) && given.read(11, &step_number) &&
           given.read(12, &code);
  }
};

PyObject* begin(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  BeginCall call;
  if (!call.read(args, count, keywords)) return nullptr;
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  const bool selected = has_no_scopes(call.source) ? (recording & kRecordingBit) != 0
                                                   : selects(recording, call.scope);
  ThreadBuffer* buffer = selected ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 name_text(call.name, kMaxNameBytes), module_text(call.module, kMaxNameBytes),
      code_text(call.code, kMaxNameBytes);
  const Utf8 shapes_text(call.shapes, UINT32_MAX), dtypes_text(call.dtypes, UINT32_MAX);
  char stack[kMaxStackBytes];
  RarePrelude rare;
  rare.texts[kModuleText] = module_text.text();
  rare.step_number = call.step_number;
  rare.texts[kCalledCode] = code_text.text();
  const std::string site = call_site_of(call.source, name_text.text());
  rare.texts[kCallSite] = {site.data(), static_cast<uint32_t>(site.size())};
  if (std::max(shapes_text.text().size, dtypes_text.text().size) <= kMaxShapesBytes) {
    rare.texts[kShapesText] = shapes_text.text(), rare.texts[kDtypesText] = dtypes_text.text();
  }
  const bool with_stack = (recording & kStackBit) != 0 && call.scope != kBackwardFunctionScope;
  if (with_stack) rare.texts[kCallStack] = {stack, python_stack(stack, sizeof stack)};
  Begin& range = call.range;
  range.name = name_text.text();
  range.scope = call.scope;
  range.flags = (call.flags & kEventFlags) | (call.source << kSourceShift & kSourceMask);
  range.has_numbers = range.handle != 0 || range.sequence_nr != -1;
  if (rare_words(rare) != 0) range.prelude.rare = &rare;
  const uint64_t event_id = begin_range<false>(globals(), *buffer, range, true);
  if (event_id != 0)
    keep_open_range(*buffer, event_id, call.scope, call.source, (call.flags & kAsync) == 0);
  return as_event_id(event_id);
}

PyObject* end(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  uint64_t event_id = 0;
  PyObject *error = nullptr, *stacktrace = nullptr, *attributes = nullptr;
  uint32_t flags = 0;
  Arguments<kEndParameters> given(kOfEnd);
  if (!given.take(args, count, keywords)) return nullptr;
  if (!given.read(0, &event_id) || !given.read(1, &error) || !given.read(2, &flags) ||
      !given.read(3, &stacktrace) || !given.read(4, &attributes)) {
    return nullptr;
  }
  ThreadBuffer* buffer = event_id != 0 ? registry().current() : nullptr;
  const Left left = forget_open_range(event_id, buffer);
  if (buffer != nullptr) {
    const FailureTexts texts(error, stacktrace);
    const Utf8 attributes_text(attributes, UINT32_MAX);
    Ending ending = texts.ending(left.cpu_time_ns);
    if (attributes_text.text().size <= kMaxAttributesBytes)
      ending.attributes = attributes_text.text();
    end_range(globals(), *buffer, event_id, 0, left.flags | (flags & kEventFlags) | texts.flags(),
              ending);
  }
  return PyLong_FromLongLong(left.cpu_time_ns);
}

PyObject* mark(PyObject*, PyObject* name) {
  if (!PyUnicode_Check(name))
    return PyErr_Format(PyExc_TypeError, "mark takes a name, a str, not %s",
                        Py_TYPE(name)->tp_name);
  ThreadBuffer* buffer = recording_buffer();
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(name, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMark, text.text(), 0, kMayLook));
}

PyObject* memory(PyObject*, PyObject* args) {
  long long nbytes;
  PyObject* device;
  if (!PyArg_ParseTuple(args, "LU", &nbytes, &device)) return nullptr;
  ThreadBuffer* buffer =
      (globals().extras.load() & kMemoryExtra) != 0 ? recording_buffer() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(device, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMemory, text.text(), nbytes, kMayLook));
}

PyMethodDef range_functions[] = {
    with_names("begin", begin,
               "begin(name, scope, source, module='', flags=0, *, sequence_nr=-1, "
               "forward_thread_id=0, handle=0, debug_handle=-1, "
               "shapes='', dtypes='', step_number=-1, code='')\n--\n\nSee _native.pyi."),
    with_names("end", end,
               "end(event_id, error='', flags=0, stacktrace='', *, attributes='') -> CPU "
               "time\n\nSee _native.pyi."),
    {"mark", mark, METH_O, "mark(name) -> event id, 0 when not recorded."},
    {"memory", memory, METH_VARARGS, "memory(nbytes, device) -> event id, 0 when not recorded."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_ranges(PyObject* module) { return PyModule_AddFunctions(module, range_functions); }

}  // namespace recfn
