// Ranges, marks and changes of memory, as Python tells the recorder of them.
#include "recording/begin_end.hpp"
#include "core/registry.hpp"
#include "python/arguments.hpp"
#include "python/python_stack.hpp"
#include "parents/tasks/task_entries.hpp"

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
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  return (recording & kRecordingBit) != 0 ? buffer_or_drop() : nullptr;
}

bool has_no_scopes(uint32_t source) {
  return source < 32 && (kSourcesWithoutScopes >> source & 1) != 0;
}

bool selects_range(uint32_t recording, uint32_t source, uint32_t scope) {
  if (has_no_scopes(source)) return (recording & kRecordingBit) != 0;
  return selects(recording, scope);
}

// Of a module's call, which is one of the traced calls.
std::string call_site_of(uint32_t source, Text name) {
  const std::string_view prefix = kCallPrefixes[kModuleSource];
  const bool is_call = source == kModuleSource &&
                       std::string_view(name.data, name.size).substr(0, prefix.size()) == prefix;
  return is_call && call_site_now != nullptr ? call_site_now() : std::string();
}

PyObject* as_event_id(uint64_t event_id) { return PyLong_FromUnsignedLongLong(event_id); }

constexpr size_t kBeginParameters = 14;
constexpr size_t kEndParameters = 7;
constexpr Arguments<kBeginParameters>::Names kBeginNames = {
    "name",   "scope",        "source", "module", "flags",       "sequence_nr", "forward_thread_id",
    "handle", "debug_handle", "shapes", "dtypes", "step_number", "code",        "at"};
constexpr Arguments<kEndParameters>::Names kEndNames = {
    "event_id", "error", "flags", "stacktrace", "attributes", "generation", "at"};

// The arguments of begin().
struct BeginCall {
  PyObject* name = nullptr;
  PyObject* module = nullptr;
  PyObject* shapes = nullptr;
  PyObject* dtypes = nullptr;
  PyObject* code = nullptr;
  uint32_t scope = 0;
  uint32_t source = 0;
  uint32_t flags = 0;
  int64_t step_number = -1;
  uint64_t at = 0;  // in ticks; 0: now
  Begin range;

  bool read(PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    Arguments<kBeginParameters> parsed(kBeginNames);
    return parsed.take(args, count, keywords) && parsed.read(0, &name) && parsed.read(1, &scope) &&
           parsed.read(2, &source) && parsed.read(3, &module) && parsed.read(4, &flags) &&
           parsed.read(5, &range.sequence_nr) && parsed.read(6, &range.forward_thread_id) &&
           parsed.read(7, &range.handle) && parsed.read(8, &range.prelude.debug_handle) &&
           parsed.read(9, &shapes) && parsed.read(10, &dtypes) && parsed.read(11, &step_number) &&
           parsed.read(12, &code) && parsed.read(13, &at);
  }
};

PyObject* begin(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  BeginCall call;
  if (!call.read(args, count, keywords)) return nullptr;
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  const bool selected = selects_range(recording, call.source, call.scope);
  ThreadBuffer* buffer = selected ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 name_text(call.name, kMaxNameBytes);
  const Utf8 module_text(call.module, kMaxNameBytes);
  const Utf8 code_text(call.code, kMaxNameBytes);
  const Utf8 shapes_text(call.shapes, UINT32_MAX);
  const Utf8 dtypes_text(call.dtypes, UINT32_MAX);
  char stack[kMaxStackBytes];
  OptionalPrelude optional;
  optional.texts[kModuleText] = module_text.text();
  optional.step_number = call.step_number;
  optional.texts[kCalledCode] = code_text.text();
  const std::string site = call_site_of(call.source, name_text.text());
  optional.texts[kCallSite] = {site.data(), static_cast<uint32_t>(site.size())};
  if (std::max(shapes_text.text().size, dtypes_text.text().size) <= kMaxShapesBytes) {
    optional.texts[kShapesText] = shapes_text.text();
    optional.texts[kDtypesText] = dtypes_text.text();
  }
  const bool with_stack = (recording & kStackBit) != 0 && call.scope != kBackwardFunctionScope;
  if (with_stack) optional.texts[kCallStack] = {stack, python_stack(stack, sizeof stack)};
  Begin& range = call.range;
  range.name = name_text.text();
  range.scope = call.scope;
  range.flags = (call.flags & kEventFlags) | (call.source << kSourceShift & kSourceMask);
  range.has_numbers = range.handle != 0 || range.sequence_nr != -1;
  optional.began_at = call.at;
  if (optional_words(optional) != 0 || optional.began_at != 0) range.prelude.optional = &optional;
  const uint64_t event_id = begin_range<false>(globals(), *buffer, range, true);
  if (event_id != 0) {
    keep_open_range(*buffer, event_id, call.scope, call.source, call.flags, call.name);
  }
  return as_event_id(event_id);
}

// Ends a range by its id, at the moment that `ending` says, also if another thread began it.
// end_range takes that moment for ranges of its own thread alone: with it for others, too, the
// compiler inlines less, and each operator costs 15 ns more.
void end_at(ThreadBuffer& buffer, uint64_t event_id, uint32_t flags, const Ending& ending) {
  if (ending.ended_at != 0 && event_id >> kOrdinalBits != buffer.number) {
    globals().remote_ends.push({event_id, 0, ending.ended_at, buffer.number, flags},
                               ending.error.data, ending.error.size);
  } else {
    end_range(globals(), buffer, event_id, 0, flags, ending);
  }
}

PyObject* end(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  uint64_t event_id = 0;
  PyObject* error = nullptr;
  PyObject* stacktrace = nullptr;
  PyObject* attributes = nullptr;
  PyObject* generation = nullptr;
  uint32_t flags = 0;
  uint64_t at = 0;  // in ticks; 0: now
  Arguments<kEndParameters> parsed(kEndNames);
  if (!parsed.take(args, count, keywords)) return nullptr;
  if (!parsed.read(0, &event_id) || !parsed.read(1, &error) || !parsed.read(2, &flags) ||
      !parsed.read(3, &stacktrace) || !parsed.read(4, &attributes) ||
      !parsed.read(5, &generation) || !parsed.read(6, &at)) {
    return nullptr;
  }
  ThreadBuffer* buffer = event_id != 0 ? registry().current() : nullptr;
  const RangeEnd left = forget_open_range(event_id, buffer);
  if (buffer != nullptr) {
    const FailureTexts texts(error, stacktrace);
    const Utf8 attributes_text(attributes, UINT32_MAX);
    const Utf8 generation_text(generation, kMaxAttributesBytes);
    Ending ending = texts.ending(left.cpu_time_ns);
    ending.ended_at = at;
    if (attributes_text.text().size <= kMaxAttributesBytes) {
      ending.attributes = attributes_text.text();
    }
    ending.generation = generation_text.text();
    end_at(*buffer, event_id, left.flags | (flags & kEventFlags) | texts.flags(), ending);
  }
  return PyLong_FromLongLong(left.cpu_time_ns);
}

PyObject* mark(PyObject*, PyObject* name) {
  if (!PyUnicode_Check(name)) {
    return PyErr_Format(PyExc_TypeError, "mark takes a name, a str, not %s",
                        Py_TYPE(name)->tp_name);
  }
  ThreadBuffer* buffer = recording_buffer();
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(name, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMark, text.text(), 0, kMayRefresh));
}

PyObject* memory(PyObject*, PyObject* args) {
  long long nbytes;
  PyObject* device;
  if (!PyArg_ParseTuple(args, "LU", &nbytes, &device)) return nullptr;
  ThreadBuffer* buffer =
      (globals().extras.load() & kMemoryExtra) != 0 ? recording_buffer() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(device, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMemory, text.text(), nbytes, kMayRefresh));
}

PyMethodDef range_functions[] = {
    with_names("begin", begin,
               "begin(name, scope, source, module='', flags=0, *, sequence_nr=-1, "
               "forward_thread_id=0, handle=0, debug_handle=-1, "
               "shapes='', dtypes='', step_number=-1, code='', at=0)\n--\n\nSee _native.pyi."),
    with_names("end", end,
               "end(event_id, error='', flags=0, stacktrace='', *, attributes='', generation='', "
               "at=0)\n--\n\nSee _native.pyi."),
    {"mark", mark, METH_O, "mark(name) -> event id, 0 when not recorded."},
    {"memory", memory, METH_VARARGS, "memory(nbytes, device) -> event id, 0 when not recorded."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_ranges(PyObject* module) { return PyModule_AddFunctions(module, range_functions); }

}  // namespace recfn
