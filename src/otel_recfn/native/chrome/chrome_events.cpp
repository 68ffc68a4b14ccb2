#include "chrome/chrome_events.hpp"

#include <algorithm>
#include <type_traits>

namespace recfn {
namespace {

// Of one row without its labels: the keys, and 20 digits for every number.
#define RECFN_BYTES(type, name, empty, attribute, argument, ...) +(sizeof argument + 24)
constexpr size_t kFixedBytes = 768 RECFN_NUMBER_COLUMNS(RECFN_BYTES);
#undef RECFN_BYTES

bool read_unsigned(PyObject* owner, const char* name, uint64_t* value) {
  PyObject* number = PyObject_GetAttrString(owner, name);
  if (number == nullptr) return false;
  *value = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  return !PyErr_Occurred();
}

}  // namespace

bool ChromeEvents::read(PyObject* batch, PyObject* rows, PyObject* python_ids) {
  return columns_.take(batch) && read_python_ids(python_ids) && rows_.take(rows, "rows", nullptr) && read_tracks(batch) &&
         read_labels();
}

bool ChromeEvents::read_python_ids(PyObject* python_ids) {
  if (python_ids == nullptr) return python_ids_.take_same(columns_.event_id);
  if (!python_ids_.take(python_ids, "python_ids", nullptr)) return false;
  if (python_ids_.size() == columns_.size()) return true;
  PyErr_SetString(PyExc_ValueError, "python_ids of another length than the batch; one for each row");
  return false;
}

bool ChromeEvents::read_tracks(PyObject* batch) {
  PyObject* sequence = PyObject_GetAttrString(batch, "tracks");
  if (sequence == nullptr) return false;
  const Py_ssize_t count = PySequence_Size(sequence);
  bool good = count >= 0;
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    PyObject* track = PySequence_GetItem(sequence, i);
    good = track != nullptr && read_track(track);
    Py_XDECREF(track);
  }
  Py_DECREF(sequence);
  return good;
}

bool ChromeEvents::read_track(PyObject* track) {
  uint64_t native_id = 0, number = 0, logical = 0;
  if (!read_unsigned(track, "native_id", &native_id) || !read_unsigned(track, "number", &number) ||
      !read_unsigned(track, "thread_id", &logical)) {
    return false;
  }
  const uint64_t tid = native_id != 0 ? native_id : number;
  std::string place = ",\"pid\":" + std::to_string(pid_) + ",\"tid\":" + std::to_string(tid) + ",\"ts\":";
  tracks_.push_back({logical, std::move(place.append(kSlack, ' '))});
  return true;
}

bool ChromeEvents::read_labels() {
  label_.reserve(static_cast<size_t>(rows_.size()));
  for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
    const Py_ssize_t row = rows_[i];
    if (!in_tables(row)) return false;
    const Py_ssize_t label = labels_.find(row, tracks_[columns_.thread[row]].logical_id);
    if (label < 0) return false;
    label_.push_back(static_cast<uint32_t>(label));
    most_bytes_ += kFixedBytes + 2 * labels_.size(label_.back());
  }
  labels_.pad();
  return true;
}

bool ChromeEvents::in_tables(Py_ssize_t row) const {
  if (row < 0 || row >= columns_.size()) {
    PyErr_Format(PyExc_IndexError, "row %zd of a batch of %zd rows", row, columns_.size());
    return false;
  }
  const size_t last_track = std::max(columns_.thread[row], columns_.end_thread[row]);
  if (last_track < tracks_.size() && columns_.scope[row] < kNumScopes) return true;
  PyErr_Format(PyExc_IndexError, "row %zd has track index %zu of %zu and scope %u of %u", row, last_track, tracks_.size(),
               static_cast<unsigned>(columns_.scope[row]), kNumScopes);
  return false;
}

size_t ChromeEvents::encode(char* begin) const {
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

void ChromeEvents::encode_complete(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
  out.literal(",\n{\"ph\":\"X\"");
  encode_moment(out, columns_.thread[row], columns_.start_ns[row]);
  out.literal(",\"dur\":");
  out.microseconds(std::max<int64_t>(0, columns_.end_ns[row] - columns_.start_ns[row]));
  out.text(labels_.text(label));
  encode_args(out, row, label, false);
}

void ChromeEvents::encode_async(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
  out.literal(",\n{\"ph\":\"b\"");
  encode_id(out, row);
  encode_moment(out, columns_.thread[row], columns_.start_ns[row]);
  out.text(labels_.text(label));
  encode_args(out, row, label, true);
  out.literal(",\n{\"ph\":\"e\"");
  encode_id(out, row);
  encode_moment(out, columns_.end_thread[row], std::max(columns_.start_ns[row], columns_.end_ns[row]));
  out.text(labels_.named(label));
  out.literal("}");
}

void ChromeEvents::encode_instant(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
  out.literal(",\n{\"ph\":\"i\",\"s\":\"t\"");
  encode_moment(out, columns_.thread[row], columns_.start_ns[row]);
  out.text(labels_.text(label));
  encode_args(out, row, label, false);
}

void ChromeEvents::encode_id(ChromeWriter& out, Py_ssize_t row) const {
  out.literal(",\"id2\":{\"local\":\"0x");
  out.hex(columns_.event_id[row]);
  out.literal("\"}");
}

void ChromeEvents::encode_moment(ChromeWriter& out, uint32_t thread, int64_t time_ns) const {
  const std::string& place = tracks_[thread].place;
  out.text({place.data(), place.size() - kSlack});
  out.microseconds(time_ns - base_ns_);
}

// What follows the label: it ends before the event id's value.
void ChromeEvents::encode_args(ChromeWriter& out, Py_ssize_t row, uint32_t label, bool async) const {
  const uint64_t event_id = columns_.event_id[row], handle = columns_.handle[row];
  out.number(event_id);
  if (handle != 0 && handle != event_id) {
    out.literal(",\"External id\":");
    out.number(handle);
  }
  encode_numbers(out, row);
  if (labels_.is_call(label)) encode_call(out, row, label);
  if (async) {
    out.literal(",\"Async\":true");
    out.literal(",\"End thread id\":");
    out.number(tracks_[columns_.end_thread[row]].logical_id);
  }
  if (columns_.is_partial(row)) out.literal(",\"Partial\":true");
  out.literal("}}");
}

// A traced Python call, or a module's call inside one.
void ChromeEvents::encode_call(ChromeWriter& out, Py_ssize_t row, uint32_t label) const {
  const uint64_t caller = columns_.caller[row];
  if (caller == 0 && columns_.source[row] != kPythonCallSource) return;
  out.literal(",\"Python id\":");
  out.number(python_ids_[row]);
  if (caller != 0) {
    out.literal(",\"Python parent id\":");
    out.number(caller);
  }
  if (const auto& module = labels_.module_number(label)) {
    out.literal(",\"Python module id\":");
    out.number(uint64_t{*module});
  }
}

void ChromeEvents::encode_numbers(ChromeWriter& out, Py_ssize_t row) const {
#define RECFN_ENCODE(type, name, empty, attribute, argument, ...)                               \
  if (sizeof argument > 1 && columns_.name[row] != static_cast<type>(empty)) {                  \
    out.literal(",\"" argument "\":");                                                          \
    out.number(std::conditional_t<std::is_signed_v<type>, int64_t, uint64_t>(columns_.name[row])); \
  }
  RECFN_NUMBER_COLUMNS(RECFN_ENCODE)
#undef RECFN_ENCODE
  if (columns_.is_memory(row)) {
    out.literal(",\"Bytes\":");
    out.number(columns_.nbytes[row]);
  }
}

}  // namespace recfn
