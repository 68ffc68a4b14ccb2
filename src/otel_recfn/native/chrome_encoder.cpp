// Chrome trace events from the columns of a sealed batch.
//
// Constraints: 400 ns per event at most and no GIL while encoding, so everything that is a Python object (names, threads) is
// copied first, and only what the rows use. Output is ASCII, the same bytes as sinks/chrome_encoder.py writes; a test holds
// the two together. Times are integers from end to end: microseconds with exactly three decimals.
//
// Every event is preceded by a comma: the sink has always written an event (the process's name) before.
#include "module.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr uint8_t kRangeKind = 0;
constexpr uint8_t kUserScope = 7;
constexpr uint8_t kModuleSource = 2;
constexpr char kModuleName[] = "nn.Module: ";
constexpr uint32_t kAsync = 1;
constexpr uint32_t kPartial = 16;
constexpr size_t kFixedBytes = 1024;  // of one row without its texts: the keys, and 20 digits for every number
constexpr size_t kFlowBytes = 320;

const char* const kScopes[] = {
    "FUNCTION",        "BACKWARD_FUNCTION", "TORCHSCRIPT_FUNCTION", "KERNEL_FUNCTION_DTYPE", "CUSTOM_CLASS",
    "BUILD_FEATURE",   "LITE_INTERPRETER",  "USER_SCOPE",           "STATIC_RUNTIME_OP",     "STATIC_RUNTIME_MODEL"};

// One column through the buffer protocol, contiguous or not. Released with the GIL held.
template <typename T>
class Column {
 public:
  Column() = default;
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  ~Column() {
    if (held_) PyBuffer_Release(&view_);
  }

  bool take(PyObject* owner, const char* name) {
    PyObject* array = PyObject_GetAttrString(owner, name);
    if (array == nullptr) return false;
    const bool taken = take(array, name, nullptr);
    Py_DECREF(array);
    return taken;
  }

  bool take(PyObject* array, const char* name, std::nullptr_t) {
    if (PyObject_GetBuffer(array, &view_, PyBUF_STRIDED_RO) < 0) return false;
    held_ = true;
    if (view_.ndim == 1 && view_.itemsize == static_cast<Py_ssize_t>(sizeof(T))) return true;
    PyErr_Format(PyExc_TypeError, "column %s has items of %zd bytes in %d dimensions; pass one dimension of %zu bytes", name,
                 view_.itemsize, view_.ndim, sizeof(T));
    return false;
  }

  Py_ssize_t size() const { return view_.shape[0]; }

  T operator[](Py_ssize_t row) const {
    T value;
    std::memcpy(&value, static_cast<const char*>(view_.buf) + row * view_.strides[0], sizeof(T));
    return value;
  }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

// Appends to memory that is known to suffice.
class Writer {
 public:
  explicit Writer(char* begin) : begin_(begin), at_(begin) {}

  template <size_t N>
  void literal(const char (&text)[N]) {
    std::memcpy(at_, text, N - 1);
    at_ += N - 1;
  }
  void text(const std::string& value) {
    std::memcpy(at_, value.data(), value.size());
    at_ += value.size();
  }
  void text(const char* value) {
    const size_t length = std::strlen(value);
    std::memcpy(at_, value, length);
    at_ += length;
  }
  template <typename Integer>
  void number(Integer value) {
    at_ = std::to_chars(at_, at_ + 20, value).ptr;
  }
  void hex(uint64_t value) { at_ = std::to_chars(at_, at_ + 16, value, 16).ptr; }

  // Nanoseconds as microseconds with three decimals.
  void microseconds(int64_t nanoseconds) {
    uint64_t magnitude = static_cast<uint64_t>(nanoseconds);
    if (nanoseconds < 0) {
      *at_++ = '-';
      magnitude = 0 - magnitude;
    }
    number(magnitude / 1000);
    const unsigned rest = static_cast<unsigned>(magnitude % 1000);
    *at_++ = '.';
    *at_++ = static_cast<char>('0' + rest / 100);
    *at_++ = static_cast<char>('0' + rest / 10 % 10);
    *at_++ = static_cast<char>('0' + rest % 10);
  }

  size_t size() const { return static_cast<size_t>(at_ - begin_); }

 private:
  char* begin_;
  char* at_;
};

void append_escape(std::string& out, unsigned unit) {
  static const char digits[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += digits[(unit >> shift) & 15];
}

// A character that is no plain ASCII, as JSON's escapes of UTF-16 units: a lone surrogate stays one, and the output valid.
void append_unicode(std::string& out, Py_UCS4 character) {
  if (character < 0x10000) return append_escape(out, character);
  character -= 0x10000;
  append_escape(out, 0xD800 | (character >> 10));
  append_escape(out, 0xDC00 | (character & 0x3FF));
}

void append_in_string(std::string& out, Py_UCS4 character) {
  switch (character) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    default: break;
  }
  if (character >= 0x20 && character < 0x7F) {
    out += static_cast<char>(character);
  } else {
    append_unicode(out, character);
  }
}

// A JSON string; or, of a text that is JSON already, the same with what is not ASCII escaped.
std::string json_text(PyObject* text, bool is_json) {
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  std::string out;
  out.reserve(static_cast<size_t>(length) + 2);
  if (!is_json) out += '"';
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 character = PyUnicode_READ(kind, data, i);
    if (!is_json) {
      append_in_string(out, character);
    } else if (character < 0x80) {
      out += static_cast<char>(character);
    } else {
      append_unicode(out, character);
    }
  }
  if (!is_json) out += '"';
  return out;
}

// The texts that the rows use, by their index in Batch.names.
class Texts {
 public:
  Texts(PyObject* names, bool is_json) : names_(names), is_json_(is_json) {}

  bool use(uint32_t index) {
    if (index < place_.size() && place_[index] >= 0) return true;
    PyObject* name = PySequence_GetItem(names_, static_cast<Py_ssize_t>(index));
    if (name == nullptr) return false;
    const bool fits = PyUnicode_Check(name);
    if (fits) {
      if (index >= place_.size()) place_.resize(std::max<size_t>(index + 1, 2 * place_.size()), -1);
      place_[index] = static_cast<int32_t>(texts_.size());
      texts_.push_back(json_text(name, is_json_));
    } else {
      PyErr_Format(PyExc_TypeError, "names[%u] is %R; a name is a str", index, name);
    }
    Py_DECREF(name);
    return fits;
  }

  const std::string& operator[](uint32_t index) const { return texts_[static_cast<size_t>(place_[index])]; }

 private:
  PyObject* names_;
  bool is_json_;
  std::vector<int32_t> place_;
  std::vector<std::string> texts_;
};

struct Thread {
  uint64_t tid = 0;      // the operating system's id, or the recorder's number where there is none
  uint64_t logical = 0;  // RecordFunction's id
};

bool read_unsigned(PyObject* owner, const char* name, uint64_t* value) {
  PyObject* number = PyObject_GetAttrString(owner, name);
  if (number == nullptr) return false;
  *value = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  return !PyErr_Occurred();
}

bool read_threads(PyObject* batch, std::vector<Thread>* threads) {
  PyObject* sequence = PyObject_GetAttrString(batch, "threads");
  if (sequence == nullptr) return false;
  const Py_ssize_t count = PySequence_Size(sequence);
  bool good = count >= 0;
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    Thread thread;
    PyObject* info = PySequence_GetItem(sequence, i);
    good = info != nullptr && read_unsigned(info, "native_id", &thread.tid) &&
           (thread.tid != 0 || read_unsigned(info, "number", &thread.tid)) &&
           read_unsigned(info, "thread_id", &thread.logical);
    Py_XDECREF(info);
    threads->push_back(thread);
  }
  Py_DECREF(sequence);
  return good;
}

struct Columns {
  Column<uint64_t> event_id, handle, forward_thread_id;
  Column<int64_t> start_ns, end_ns, sequence_nr, node_id, debug_handle;
  Column<uint32_t> name, thread, end_thread, flags, shapes, dtypes, module, error;
  Column<uint8_t> kind, scope, source;

  bool take(PyObject* batch) {
    return event_id.take(batch, "event_id") && handle.take(batch, "handle") &&
           forward_thread_id.take(batch, "forward_thread_id") && start_ns.take(batch, "start_ns") &&
           end_ns.take(batch, "end_ns") && sequence_nr.take(batch, "sequence_nr") && node_id.take(batch, "node_id") &&
           debug_handle.take(batch, "debug_handle") && name.take(batch, "name") && thread.take(batch, "thread") &&
           end_thread.take(batch, "end_thread") && flags.take(batch, "flags") && shapes.take(batch, "shapes") &&
           dtypes.take(batch, "dtypes") && module.take(batch, "module") && error.take(batch, "error") &&
           kind.take(batch, "kind") && scope.take(batch, "scope") && source.take(batch, "source") && equally_long();
  }

  Py_ssize_t size() const { return event_id.size(); }

 private:
  bool equally_long() const {
    const Py_ssize_t n = size();
    for (const Py_ssize_t other :
         {handle.size(), forward_thread_id.size(), start_ns.size(), end_ns.size(), sequence_nr.size(), node_id.size(),
          debug_handle.size(), name.size(), thread.size(), end_thread.size(), flags.size(), shapes.size(), dtypes.size(),
          module.size(), error.size(), kind.size(), scope.size(), source.size()}) {
      if (other == n) continue;
      PyErr_Format(PyExc_ValueError, "columns of %zd and %zd rows; a batch's columns are equally long", n, other);
      return false;
    }
    return true;
  }
};

class EventEncoder {
 public:
  EventEncoder(PyObject* names, int64_t pid, int64_t base_ns)
      : quoted_(names, false), json_(names, true), pid_(pid), base_ns_(base_ns) {}

  bool read(PyObject* batch, PyObject* rows) {
    return columns_.take(batch) && rows_.take(rows, "rows", nullptr) && read_threads(batch, &threads_) && read_texts();
  }

  size_t most_bytes() const { return most_bytes_; }

  size_t encode(char* begin) const {
    Writer out(begin);
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      const Py_ssize_t row = rows_[i];
      if (columns_.kind[row] != kRangeKind) {
        encode_instant(out, row);
      } else if (is_async(row)) {
        encode_async(out, row);
      } else {
        encode_complete(out, row);
      }
    }
    return out.size();
  }

 private:
  bool read_texts() {
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      const Py_ssize_t row = rows_[i];
      if (!in_tables(row)) return false;
      const uint32_t name = columns_.name[row], module = columns_.module[row], error = columns_.error[row];
      const uint32_t shapes = columns_.shapes[row], dtypes = columns_.dtypes[row];
      if (!quoted_.use(name) || !quoted_.use(module) || !quoted_.use(error) || !json_.use(shapes) || !json_.use(dtypes)) {
        return false;
      }
      most_bytes_ += kFixedBytes + 2 * quoted_[name].size() + quoted_[module].size() + quoted_[error].size() +
                     json_[shapes].size() + json_[dtypes].size();
    }
    return true;
  }

  bool in_tables(Py_ssize_t row) const {
    if (row < 0 || row >= columns_.size()) {
      PyErr_Format(PyExc_IndexError, "row %zd of a batch of %zd rows", row, columns_.size());
      return false;
    }
    const size_t last_thread = std::max(columns_.thread[row], columns_.end_thread[row]);
    if (last_thread < threads_.size() && columns_.scope[row] < std::size(kScopes)) return true;
    PyErr_Format(PyExc_IndexError, "row %zd has thread index %zu of %zu and scope %u of %zu", row, last_thread,
                 threads_.size(), static_cast<unsigned>(columns_.scope[row]), std::size(kScopes));
    return false;
  }

  // What may end elsewhere or out of turn: as a slice it could overlap others of its thread.
  bool is_async(Py_ssize_t row) const {
    return (columns_.flags[row] & kAsync) != 0 || columns_.thread[row] != columns_.end_thread[row];
  }

  const char* category(Py_ssize_t row) const {
    if (columns_.kind[row] != kRangeKind) return "cpu_instant_event";
    if (columns_.source[row] == kModuleSource && is_module_call(quoted_[columns_.name[row]])) return "python_function";
    return columns_.scope[row] == kUserScope ? "user_annotation" : "cpu_op";
  }

  // The optimizers' steps are of the same source: annotations, as in PyTorch's own traces.
  static bool is_module_call(const std::string& quoted) { return quoted.compare(1, sizeof(kModuleName) - 1, kModuleName) == 0; }

  void encode_complete(Writer& out, Py_ssize_t row) const {
    out.literal(",\n{\"ph\":\"X\"");
    encode_common(out, row, columns_.thread[row], columns_.start_ns[row]);
    out.literal(",\"dur\":");
    out.microseconds(std::max<int64_t>(0, columns_.end_ns[row] - columns_.start_ns[row]));
    encode_args(out, row, false);
  }

  void encode_async(Writer& out, Py_ssize_t row) const {
    out.literal(",\n{\"ph\":\"b\"");
    encode_id(out, row);
    encode_common(out, row, columns_.thread[row], columns_.start_ns[row]);
    encode_args(out, row, true);
    out.literal(",\n{\"ph\":\"e\"");
    encode_id(out, row);
    encode_common(out, row, columns_.end_thread[row], std::max(columns_.start_ns[row], columns_.end_ns[row]));
    out.literal("}");
  }

  void encode_instant(Writer& out, Py_ssize_t row) const {
    out.literal(",\n{\"ph\":\"i\",\"s\":\"t\"");
    encode_common(out, row, columns_.thread[row], columns_.start_ns[row]);
    encode_args(out, row, false);
  }

  void encode_id(Writer& out, Py_ssize_t row) const {
    out.literal(",\"id\":\"0x");
    out.hex(columns_.event_id[row]);
    out.literal("\"");
  }

  void encode_common(Writer& out, Py_ssize_t row, uint32_t thread, int64_t time_ns) const {
    out.literal(",\"cat\":\"");
    out.text(category(row));
    out.literal("\",\"name\":");
    out.text(quoted_[columns_.name[row]]);
    out.literal(",\"pid\":");
    out.number(pid_);
    out.literal(",\"tid\":");
    out.number(threads_[thread].tid);
    out.literal(",\"ts\":");
    out.microseconds(time_ns - base_ns_);
  }

  void encode_args(Writer& out, Py_ssize_t row, bool async) const {
    const uint64_t event_id = columns_.event_id[row];
    out.literal(",\"args\":{\"External id\":");
    out.number(event_id);
    out.literal(",\"Event id\":");
    out.number(event_id);
    out.literal(",\"Scope\":\"");
    out.text(kScopes[columns_.scope[row]]);
    out.literal("\",\"Thread id\":");
    out.number(threads_[columns_.thread[row]].logical);
    encode_record_function(out, row);
    encode_extras(out, row);
    if (async) {
      out.literal(",\"Async\":true,\"End thread id\":");
      out.number(threads_[columns_.end_thread[row]].logical);
    }
    if (columns_.flags[row] & kPartial) out.literal(",\"Partial\":true");
    out.literal("}}");
  }

  void encode_record_function(Writer& out, Py_ssize_t row) const {
    if (const uint64_t handle = columns_.handle[row]; handle != 0) {
      out.literal(",\"Record function id\":");
      out.number(handle);
    }
    if (const int64_t sequence_nr = columns_.sequence_nr[row]; sequence_nr != -1) {
      out.literal(",\"Sequence number\":");
      out.number(sequence_nr);
    }
    if (const uint64_t forward = columns_.forward_thread_id[row]; forward != 0) {
      out.literal(",\"Fwd thread id\":");
      out.number(forward);
    }
    if (const int64_t node_id = columns_.node_id[row]; node_id != -1) {
      out.literal(",\"Node id\":");
      out.number(node_id);
    }
    if (const int64_t debug_handle = columns_.debug_handle[row]; debug_handle != -1) {
      out.literal(",\"Debug handle\":");
      out.number(debug_handle);
    }
  }

  void encode_extras(Writer& out, Py_ssize_t row) const {
    if (const uint32_t shapes = columns_.shapes[row]; shapes != 0) {
      out.literal(",\"Input Dims\":");
      out.text(json_[shapes]);
    }
    if (const uint32_t dtypes = columns_.dtypes[row]; dtypes != 0) {
      out.literal(",\"Input type\":");
      out.text(json_[dtypes]);
    }
    if (const uint32_t module = columns_.module[row]; module != 0) {
      out.literal(",\"Module\":");
      out.text(quoted_[module]);
    }
    if (const uint32_t error = columns_.error[row]; error != 0) {
      out.literal(",\"Error\":");
      out.text(quoted_[error]);
    }
  }

  Columns columns_;
  Column<int64_t> rows_;
  std::vector<Thread> threads_;
  Texts quoted_, json_;
  int64_t pid_, base_ns_;
  size_t most_bytes_ = 0;
};

// Bytes that `fill` writes without the GIL; it returns how many they are.
template <typename Fill>
PyObject* make_bytes(size_t most, Fill fill) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(most));
  if (bytes == nullptr) return nullptr;
  char* begin = PyBytes_AS_STRING(bytes);
  size_t size = 0;
  Py_BEGIN_ALLOW_THREADS
  size = fill(begin);
  Py_END_ALLOW_THREADS
  if (_PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(size)) < 0) return nullptr;
  return bytes;
}

PyObject* encode_events(PyObject*, PyObject* arguments) {
  PyObject *batch, *rows;
  long long pid, base_ns;
  if (!PyArg_ParseTuple(arguments, "OOLL", &batch, &rows, &pid, &base_ns)) return nullptr;
  PyObject* names = PyObject_GetAttrString(batch, "names");
  if (names == nullptr) return nullptr;
  PyObject* result = nullptr;
  {
    EventEncoder encoder(names, pid, base_ns);
    if (encoder.read(batch, rows)) {
      result = make_bytes(encoder.most_bytes(), [&](char* begin) { return encoder.encode(begin); });
    }
  }
  Py_DECREF(names);
  return result;
}

struct FlowEnds {
  Column<uint64_t> tid;
  Column<int64_t> ns;
};

void encode_flow_end(Writer& out, const FlowEnds& ends, Py_ssize_t row, long long pid, long long base_ns) {
  out.literal(",\"pid\":");
  out.number(pid);
  out.literal(",\"tid\":");
  out.number(ends.tid[row]);
  out.literal(",\"ts\":");
  out.microseconds(ends.ns[row] - base_ns);
  out.literal(",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"");
}

PyObject* encode_flows(PyObject*, PyObject* arguments) {
  PyObject *from_tid, *from_ns, *to_tid, *to_ns;
  long long first_id, pid, base_ns;
  if (!PyArg_ParseTuple(arguments, "OOOOLLL", &from_tid, &from_ns, &to_tid, &to_ns, &first_id, &pid, &base_ns)) return nullptr;
  FlowEnds from, to;
  if (!from.tid.take(from_tid, "from_tid", nullptr) || !from.ns.take(from_ns, "from_ns", nullptr) ||
      !to.tid.take(to_tid, "to_tid", nullptr) || !to.ns.take(to_ns, "to_ns", nullptr)) {
    return nullptr;
  }
  const Py_ssize_t count = from.tid.size();
  if (from.ns.size() != count || to.tid.size() != count || to.ns.size() != count) {
    PyErr_SetString(PyExc_ValueError, "columns of different lengths; a flow has one value in each");
    return nullptr;
  }
  return make_bytes(static_cast<size_t>(count) * kFlowBytes, [&](char* begin) {
    Writer out(begin);
    for (Py_ssize_t row = 0; row < count; ++row) {
      out.literal(",\n{\"ph\":\"s\",\"id\":");
      out.number(first_id + row);
      encode_flow_end(out, from, row, pid, base_ns);
      out.literal("},\n{\"ph\":\"f\",\"id\":");
      out.number(first_id + row);
      encode_flow_end(out, to, row, pid, base_ns);
      out.literal(",\"bp\":\"e\"}");
    }
    return out.size();
  });
}

PyMethodDef functions[] = {
    {"encode_chrome_events", encode_events, METH_VARARGS,
     "encode_chrome_events(batch, rows, pid, base_ns) -> bytes\n\nThe rows (an int64 array) as Chrome trace events."},
    {"encode_chrome_flows", encode_flows, METH_VARARGS,
     "encode_chrome_flows(from_tid, from_ns, to_tid, to_ns, first_id, pid, base_ns) -> bytes\n\n"
     "One fwdbwd arrow per row, from the start of a forward slice to the start of its backward slice."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_chrome_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }
