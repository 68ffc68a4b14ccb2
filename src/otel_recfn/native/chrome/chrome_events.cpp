// The rows of a sealed batch as Chrome trace events in UTF-8, and arrows between them;
// `tests/models/chrome_events.py` says the same, to be read. Times are integers from end to end:
// microseconds with exactly three decimals.
//
// `read` makes text of what is a Python object (names, tracks); `encode` writes the events around
// it and needs no GIL, to memory that the caller keeps between calls: fresh memory would cost as
// much as the encoding. Every event is preceded by a comma: the sink has always written an event
// (the process's name) before.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "chrome/chrome_writer.hpp"
#include "chrome/event_labels.hpp"
#include "columns/column_view.hpp"
#include "cpython/python.hpp"

namespace recfn {
namespace {

class ChromeEvents {
 public:
  ChromeEvents(PyObject* names, int64_t pid, int64_t base_ns)
      : labels_(names, columns_), pid_(pid), base_ns_(base_ns) {}

  // `ids`: the Python ids of traced calls, by row, 0 where there is none; None where no row has
  // one.
  bool read(PyObject* batch, PyObject* rows, PyObject* ids) {
    return columns_.take(batch) && rows_.take_array(rows, "rows") && read_python_ids(ids) &&
           read_tracks(batch) && read_labels();
  }

  size_t max_bytes() const { return max_bytes_; }

  size_t encode(char* begin) const {
    ChromeWriter out(begin);
    for (size_t i = 0; i < label_.size(); ++i) {
      const Py_ssize_t row = rows_[static_cast<Py_ssize_t>(i)];
      if (!columns_.is_range(row)) {
        encode_instant(out, row, label_[i]);
      } else if (columns_.is_async(row)) {
        encode_async(out, row, label_[i]);
      } else {
        encode_complete(out, row, label_[i]);
      }
    }
    return out.size();
  }

 private:
// Of one row without its labels: the keys, and 20 digits for every number.
#define RECFN_BYTES(type, name, empty, attribute, argument, ...) +(sizeof argument + 24)
  static constexpr size_t kFixedBytes = 832 RECFN_NUMBER_COLUMNS(RECFN_BYTES);
#undef RECFN_BYTES

  struct Track {
    uint64_t logical_id;       // RecordFunction's
    std::string track_fields;  // ,"pid":1,"tid":2,"ts": and kSlack more
  };

  bool read_python_ids(PyObject* ids) {
    if (ids == Py_None) return true;
    return own_id_.take(ids, "own") && caller_id_.take(ids, "caller") &&
           equally_long({columns_.size(), own_id_.size(), caller_id_.size()});
  }

  static bool read_unsigned(PyObject* owner, const char* name, uint64_t* value) {
    const Reference number(PyObject_GetAttrString(owner, name));
    if (!number) return false;
    *value = PyLong_AsUnsignedLongLong(number.get());
    return !PyErr_Occurred();
  }

  bool read_tracks(PyObject* batch) {
    const Reference tracks(PyObject_GetAttrString(batch, "tracks"));
    const Py_ssize_t count = tracks ? PySequence_Size(tracks.get()) : -1;
    for (Py_ssize_t i = 0; i < count; ++i) {
      const Reference track(PySequence_GetItem(tracks.get(), i));
      if (!track || !read_track(track.get())) return false;
    }
    return count >= 0;
  }

  bool read_track(PyObject* track) {
    uint64_t native_id = 0, number = 0, logical = 0;
    if (!read_unsigned(track, "native_id", &native_id) ||
        !read_unsigned(track, "number", &number) || !read_unsigned(track, "thread_id", &logical)) {
      return false;
    }
    const uint64_t tid = native_id != 0 ? native_id : number;
    std::string track_fields =
        ",\"pid\":" + std::to_string(pid_) + ",\"tid\":" + std::to_string(tid) + ",\"ts\":";
    tracks_.push_back({logical, std::move(track_fields.append(kSlack, ' '))});
    return true;
  }

  bool read_labels() {
    label_.reserve(static_cast<size_t>(rows_.size()));
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      const Py_ssize_t row = rows_[i];
      if (!in_tables(row)) return false;
      const Py_ssize_t label = labels_.find(row, tracks_[columns_.thread[row]].logical_id);
      if (label < 0) return false;
      label_.push_back(static_cast<uint32_t>(label));
      max_bytes_ += kFixedBytes + 2 * labels_.size(label_.back());
    }
    labels_.pad();
    return true;
  }

  bool in_tables(Py_ssize_t row) const {
    if (row < 0 || row >= columns_.size()) {
      PyErr_Format(PyExc_IndexError, "row %zd of a batch of %zd rows", row, columns_.size());
      return false;
    }
    const size_t last_track = std::max(columns_.thread[row], columns_.end_thread[row]);
    if (last_track < tracks_.size() && columns_.scope[row] < kNumScopes) return true;
    PyErr_Format(PyExc_IndexError, "row %zd has track index %zu of %zu and scope %u of %u", row,
                 last_track, tracks_.size(), static_cast<unsigned>(columns_.scope[row]),
                 kNumScopes);
    return false;
  }

  // All that writes an event is inlined into the loop of `encode`: a store of characters may alias
  // the writer, and as soon as a call needs the writer in memory, its position is read again after
  // each store. That cost a quarter of the encoder's time.
  [[gnu::always_inline]] inline void encode_complete(ChromeWriter& out, Py_ssize_t row,
                                                     uint32_t label) const {
    out.literal(",\n{\"ph\":\"X\"");
    encode_moment(out, columns_.thread[row], columns_.start_ns[row]);
    out.literal(",\"dur\":");
    out.microseconds(std::max<int64_t>(0, columns_.end_ns[row] - columns_.start_ns[row]));
    out.text(labels_.text(label));
    encode_args(out, row, label, false);
  }

  void encode_async(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
    out.literal(",\n{\"ph\":\"b\"");
    encode_id(out, row);
    encode_moment(out, columns_.thread[row], columns_.start_ns[row]);
    out.text(labels_.text(label));
    encode_args(out, row, label, true);
    out.literal(",\n{\"ph\":\"e\"");
    encode_id(out, row);
    encode_moment(out, columns_.end_thread[row],
                  std::max(columns_.start_ns[row], columns_.end_ns[row]));
    out.text(labels_.named(label));
    out.literal("}");
  }

  void encode_instant(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
    out.literal(",\n{\"ph\":\"i\",\"s\":\"t\"");
    encode_moment(out, columns_.thread[row], columns_.start_ns[row]);
    out.text(labels_.text(label));
    encode_args(out, row, label, false);
  }

  [[gnu::always_inline]] inline void encode_id(ChromeWriter& out, Py_ssize_t row) const {
    out.literal(",\"id2\":{\"local\":\"0x");
    out.hex(columns_.event_id[row]);
    out.literal("\"}");
  }

  [[gnu::always_inline]] inline void encode_moment(ChromeWriter& out, uint32_t thread,
                                                   int64_t time_ns) const {
    const std::string& track_fields = tracks_[thread].track_fields;
    out.text(std::string_view(track_fields.data(), track_fields.size() - kSlack));
    out.microseconds(time_ns - base_ns_);
  }

  // What follows the label: it ends before the event id's value.
  [[gnu::always_inline]] inline void encode_args(ChromeWriter& out, Py_ssize_t row, uint32_t label,
                                                 bool async) const {
    const uint64_t event_id = columns_.event_id[row];
    const uint64_t handle = columns_.handle[row];
    out.number(event_id);
    if (handle != 0 && handle != event_id) out.argument(",\"External id\":", handle);
    if (columns_.has_parent_elsewhere(row)) out.argument(",\"Parent id\":", columns_.parent[row]);
    encode_numbers(out, row);
    if (own_id_.size() != 0 && own_id_[row] != 0) encode_call(out, row, label);
    if (async) {
      out.literal(",\"Async\":true");
      out.argument(",\"End thread id\":", tracks_[columns_.end_thread[row]].logical_id);
      if (columns_.encloses(row)) out.literal(",\"Encloses\":true");
    }
    if (columns_.is_partial(row)) out.literal(",\"Partial\":true");
    out.literal("}}");
  }

  [[gnu::always_inline]] inline void encode_numbers(ChromeWriter& out, Py_ssize_t row) const {
#define RECFN_ENCODE(type, name, empty, attribute, key, ...)                      \
  if (sizeof key > 1 && columns_.name[row] != static_cast<type>(empty)) {         \
    using Number = std::conditional_t<std::is_signed_v<type>, int64_t, uint64_t>; \
    out.argument(",\"" key "\":", static_cast<Number>(columns_.name[row]));       \
  }
    RECFN_NUMBER_COLUMNS(RECFN_ENCODE)
#undef RECFN_ENCODE
    if (columns_.is_memory(row)) out.argument(",\"Bytes\":", columns_.nbytes[row]);
  }

  // A traced Python call, or a module's call inside one.
  void encode_call(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
    out.argument(",\"Python id\":", own_id_[row]);
    if (const uint64_t caller = caller_id_[row]) out.argument(",\"Python parent id\":", caller);
    if (const auto& module = labels_.module_number(label)) {
      out.argument(",\"Python module id\":", uint64_t{*module});
    }
  }

  ChromeColumns columns_;
  ColumnView<int64_t> rows_;
  ColumnView<uint64_t> own_id_, caller_id_;
  EventLabels labels_;
  std::vector<uint32_t> label_;  // of each of the rows
  std::vector<Track> tracks_;
  int64_t pid_, base_ns_;
  size_t max_bytes_ = kSlack;
};

constexpr size_t kFlowBytes = 384;  // of one arrow: the keys, and 20 digits for every number

// What `fill` writes, without the GIL, to the start of a bytearray, which grows to `max_size`
// bytes; its size. The buffer is held so that nobody else resizes it meanwhile.
template <typename Fill>
PyObject* fill_memory(PyObject* memory, size_t max_size, Fill fill) {
  const Py_ssize_t needed = static_cast<Py_ssize_t>(max_size);
  if (PyByteArray_GET_SIZE(memory) < needed && PyByteArray_Resize(memory, needed) < 0) {
    return nullptr;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0) return nullptr;
  size_t size = 0;
  const bool filled = without_gil([&] { size = fill(static_cast<char*>(view.buf)); });
  PyBuffer_Release(&view);
  return filled ? PyLong_FromSize_t(size) : nullptr;
}

PyObject* encode_events(PyObject*, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"batch", "rows", "pid", "base_ns", "memory", "ids", nullptr};
  PyObject *batch, *rows, *memory, *ids;
  long long pid, base_ns;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO$LLO!O:encode_chrome_events",
                                   const_cast<char**>(parameters), &batch, &rows, &pid, &base_ns,
                                   &PyByteArray_Type, &memory, &ids)) {
    return nullptr;
  }
  const Reference names(PyObject_GetAttrString(batch, "names"));
  if (!names) return nullptr;
  return guarded([&]() -> PyObject* {
    ChromeEvents events(names.get(), pid, base_ns);
    if (!events.read(batch, rows, ids)) return nullptr;
    return fill_memory(memory, events.max_bytes(),
                       [&](char* begin) { return events.encode(begin); });
  });
}

struct FlowEnds {
  ColumnView<uint64_t> tid;
  ColumnView<int64_t> ns;
};

void encode_flow_end(ChromeWriter& out, const FlowEnds& ends, Py_ssize_t row, int64_t pid,
                     int64_t base_ns) {
  out.literal(",\"pid\":");
  out.number(pid);
  out.literal(",\"tid\":");
  out.number(ends.tid[row]);
  out.literal(",\"ts\":");
  out.microseconds(ends.ns[row] - base_ns);
  out.literal(",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"");
}

PyObject* encode_flows(PyObject*, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"arrows", "first_id", "pid", "base_ns", "memory", nullptr};
  PyObject *arrows, *memory;
  long long first_id, pid, base_ns;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O$LLLO!:encode_chrome_flows",
                                   const_cast<char**>(parameters), &arrows, &first_id, &pid,
                                   &base_ns, &PyByteArray_Type, &memory)) {
    return nullptr;
  }
  FlowEnds from, to;
  if (!from.tid.take(arrows, "from_tid") || !from.ns.take(arrows, "from_ns") ||
      !to.tid.take(arrows, "to_tid") || !to.ns.take(arrows, "to_ns")) {
    return nullptr;
  }
  const Py_ssize_t count = from.tid.size();
  if (!equally_long({count, from.ns.size(), to.tid.size(), to.ns.size()})) return nullptr;
  return fill_memory(memory, static_cast<size_t>(count) * kFlowBytes, [&](char* begin) {
    ChromeWriter out(begin);
    for (Py_ssize_t row = 0; row < count; ++row) {
      out.literal(",\n{\"ph\":\"s\",\"id\":");
      out.number(static_cast<int64_t>(first_id + row));
      encode_flow_end(out, from, row, pid, base_ns);
      out.literal("},\n{\"ph\":\"f\",\"id\":");
      out.number(static_cast<int64_t>(first_id + row));
      encode_flow_end(out, to, row, pid, base_ns);
      out.literal(",\"bp\":\"e\"}");
    }
    return out.size();
  });
}

PyMethodDef functions[] = {
    {"encode_chrome_events", with_keywords(encode_events), METH_VARARGS | METH_KEYWORDS,
     "encode_chrome_events(batch, rows, *, pid, base_ns, memory, ids)\n--\n\n"
     "The rows (an int64 array) as Chrome trace events: so many bytes at the start of the "
     "bytearray, which grows as needed.\n"
     "ids: the CallIds of the batch's rows; None: no row has any."},
    {"encode_chrome_flows", with_keywords(encode_flows), METH_VARARGS | METH_KEYWORDS,
     "encode_chrome_flows(arrows, *, first_id, pid, base_ns, memory)\n--\n\n"
     "One fwdbwd arrow per row, from the start of a forward slice to the start of its backward "
     "slice, as encode_chrome_events."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_chrome_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
