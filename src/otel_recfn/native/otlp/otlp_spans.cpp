#include "otlp/otlp_spans.hpp"

#include "otlp/field_tags.hpp"
#include "model/span_id.hpp"

#include <algorithm>

namespace recfn {
namespace {

// Of one span without what it shares: keys, ids, times and the digits of every number.
#define RECFN_BYTES(type, name, empty, attribute, ...) +(sizeof attribute + 24)
constexpr size_t kFixedBytes = 512 RECFN_NUMBER_COLUMNS(RECFN_BYTES);
#undef RECFN_BYTES
constexpr uint32_t kToldFlags = kAsync | kPartial | kError | kClockJumped;
// SpanFlags of trace.proto: it is known whether the parent is remote, and it isn't.
constexpr uint32_t kSpanFlags = 0x100;
constexpr uint8_t kInternalKind = 1;
constexpr uint8_t kTraceIdBytes = 16, kSpanIdBytes = 8;
constexpr size_t kTimeFieldBytes = 9, kLinkBytes = 2 + kTraceIdBytes + 2 + kSpanIdBytes + 5;

// A KeyValue up to its value's length. `value_bytes`, and all sizes here, are less than 128, so that each is one byte.
template <size_t N>
void begin_attribute(WireWriter& out, const char (&key)[N], size_t value_bytes) {
  constexpr size_t kKeyBytes = N - 1;
  static_assert(kKeyBytes < 100, "a length of more than one byte");
  out.tag<tags::span::kAttributes>();
  out.byte(static_cast<uint8_t>(2 + kKeyBytes + 2 + value_bytes));
  out.tag<tags::key_value::kKey>();
  out.byte(static_cast<uint8_t>(kKeyBytes));
  out.literal(key);
  out.tag<tags::key_value::kValue>();
  out.byte(static_cast<uint8_t>(value_bytes));
}

template <size_t N>
void int_attribute(WireWriter& out, const char (&key)[N], int64_t value) {
  const uint64_t bits = static_cast<uint64_t>(value);
  begin_attribute(out, key, 1 + varint_size(bits));
  out.tag<tags::any_value::kInt>();
  out.varint(bits);
}

template <size_t N>
void true_attribute(WireWriter& out, const char (&key)[N]) {
  begin_attribute(out, key, 2);
  out.tag<tags::any_value::kBool>();
  out.byte(1);
}

// Zero is what a field that is left out means.
template <uint32_t Tag>
void time_field(WireWriter& out, uint64_t time) {
  if (!time) return;
  out.tag<Tag>();
  out.fixed64(time);
}

template <uint32_t Tag>
void trace_id_field(WireWriter& out, const char (&id)[kTraceIdBytes]) {
  out.tag<Tag>();
  out.byte(kTraceIdBytes);
  std::memcpy(out.reserve(kTraceIdBytes), id, kTraceIdBytes);
}

template <uint32_t Tag>
void span_id_field(WireWriter& out, uint64_t id) {
  out.tag<Tag>();
  out.byte(kSpanIdBytes);
  out.big_endian(id);
}

// An event up to what follows its time, of `rest_bytes`.
void begin_event(WireWriter& out, uint64_t time, size_t rest_bytes) {
  out.tag<tags::span::kEvents>();
  out.varint((time ? kTimeFieldBytes : 0) + rest_bytes);
  time_field<tags::event::kTime>(out, time);
}

bool length_of(PyObject* owner, const char* name, size_t& length) {
  PyObject* sequence = PyObject_GetAttrString(owner, name);
  const Py_ssize_t found = sequence != nullptr ? PySequence_Size(sequence) : -1;
  Py_XDECREF(sequence);
  if (found >= 0) length = static_cast<size_t>(found);
  return found >= 0;
}

}  // namespace

bool OtlpSpans::read(PyObject* batch, PyObject* plan_columns, PyObject* above, uint64_t key) {
  key_ = key;
  return read_batch(batch) && read_plan(plan_columns) && read_above(above);
}

bool OtlpSpans::read_batch(PyObject* batch) {
#define RECFN_TAKE(type, name, ...) name.take(batch, #name) &&
  const bool taken = RECFN_EACH_COLUMN(RECFN_TAKE) true;
#undef RECFN_TAKE
  if (!taken || !length_of(batch, "names", num_names_) || !length_of(batch, "tracks", num_tracks_)) return false;
  bool equal = true;
#define RECFN_EQUAL(type, name, ...) equal = equal && name.size() == event_id.size();
  RECFN_EACH_COLUMN(RECFN_EQUAL)
#undef RECFN_EQUAL
  if (!equal) PyErr_SetString(PyExc_ValueError, "columns of a batch of different lengths; they must be equally long");
  return equal;
}

bool OtlpSpans::read_plan(PyObject* columns) {
  PyObject *rows, *parent, *places, *linked_id, *linked_above;
  if (!PyArg_ParseTuple(columns, "OOOOO", &rows, &parent, &places, &linked_id, &linked_above)) return false;
  const bool taken = rows_.take(rows, "row", nullptr) && parent_.take(parent, "parent", nullptr) &&
                     above_.take(places, "above", nullptr) && linked_id_.take(linked_id, "linked_id", nullptr) &&
                     linked_above_.take(linked_above, "linked_above", nullptr);
  if (!taken) return false;
  const Py_ssize_t n = rows_.size();
  const bool equal = parent_.size() == n && above_.size() == n && linked_id_.size() == n && linked_above_.size() == n;
  if (!equal) PyErr_SetString(PyExc_ValueError, "columns of a plan of different lengths; they must be equally long");
  return equal;
}

bool OtlpSpans::read_above(PyObject* above) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(above); ++i) {
    const char *trace_id, *state;
    Py_ssize_t id_size, state_size;
    unsigned long long span_id;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(above, i), "y#y#K", &trace_id, &id_size, &state, &state_size, &span_id)) return false;
    if (id_size != sizeof Above::trace_id) {
      PyErr_Format(PyExc_ValueError, "a trace id of %zd bytes; pass %zu", id_size, sizeof Above::trace_id);
      return false;
    }
    Above one{{}, std::string(state, static_cast<size_t>(state_size)), static_cast<size_t>(state_size), span_id};
    std::memcpy(one.trace_id, trace_id, sizeof one.trace_id);
    one.state.append(kWireSlack, '\0');
    spans_above_.push_back(std::move(one));
  }
  return true;
}

bool OtlpSpans::in_tables(Py_ssize_t i) const {
  const Py_ssize_t row = rows_[i];
  const auto count = static_cast<int64_t>(spans_above_.size());
  if (row < 0 || row >= event_id.size() || above_[i] < 0 || above_[i] >= count) return false;
  if (linked_id_[i] != 0 && (linked_above_[i] < 0 || linked_above_[i] >= count)) return false;
  size_t last = std::max({name[row], error[row], stacktrace[row], code[row]});
#define RECFN_LAST(type, name, empty, attribute, ...) \
  if constexpr (sizeof attribute > 1) last = std::max<size_t>(last, name[row]);
  RECFN_TEXT_COLUMNS(RECFN_LAST)
#undef RECFN_LAST
  return last < num_names_ && thread[row] < num_tracks_ && scope[row] < kNumScopes;
}

bool OtlpSpans::scan() {
  for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
    if (!in_tables(i)) {
      bad_row_ = rows_[i];
      return false;
    }
    need_shared(rows_[i]);
  }
  return true;
}

void OtlpSpans::need_shared(Py_ssize_t row) {
  fragments_.need(kNameField, name[row], num_names_);
  fragments_.need(kScopeAndThread, scope_and_thread(row), num_tracks_ * kScopes);
  if (is_plain(row)) return;
#define RECFN_NEED(type, name, empty, attribute, ...) \
  if (sizeof attribute > 1 && name[row]) fragments_.need(k_##name##_text, name[row], num_names_);
  RECFN_TEXT_COLUMNS(RECFN_NEED)
#undef RECFN_NEED
  if (has_code(row)) fragments_.need(kCodeAttributes, called(row), num_names_);
  if (flags[row] & kError) {
    fragments_.need(kErrorTypeAttribute, error[row], num_names_);
    fragments_.need(kExceptionEvent, error[row], num_names_);
    fragments_.need(kExceptionStacktrace, stacktrace[row], num_names_);
    fragments_.need(kErrorStatus, error[row], num_names_);
  }
}

// Whether it has nothing in the columns that are seldom filled.
bool OtlpSpans::is_plain(Py_ssize_t row) const {
  bool plain = (code[row] | (flags[row] & kToldFlags)) == 0 && source[row] != kPythonCallSource;
#define RECFN_PLAIN(type, name, empty, attribute, ...) \
  if constexpr (sizeof attribute > 1) plain = plain && name[row] == static_cast<type>(empty);
  RECFN_COLUMNS(RECFN_NO_COLUMN, RECFN_PLAIN, RECFN_PLAIN, RECFN_PLAIN)
#undef RECFN_PLAIN
  return plain;
}

bool OtlpSpans::share(PyObject* batch, PyObject* maker, PyObject* told) {
  PyObject* names = PyObject_GetAttrString(batch, "names");
  if (names == nullptr) return false;
  const bool good = fragments_.take_told(told) && fragments_.make(names, maker);
  Py_DECREF(names);
  return good;
}

size_t OtlpSpans::most_bytes() const {
  size_t most = 2 * kWireSlack;
  for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
    most += kFixedBytes + spans_above_[static_cast<size_t>(above_[i])].state_size + most_bytes_of(rows_[i]);
  }
  return most;
}

size_t OtlpSpans::most_bytes_of(Py_ssize_t row) const {
  size_t most = fragments_.text(kNameField, name[row]).size() + fragments_.text(kScopeAndThread, scope_and_thread(row)).size();
  most += fragments_.told(row).size();
  if (is_plain(row)) return most;
#define RECFN_MOST(type, name, empty, attribute, ...) \
  if (sizeof attribute > 1 && name[row]) most += fragments_.text(k_##name##_text, name[row]).size();
  RECFN_TEXT_COLUMNS(RECFN_MOST)
#undef RECFN_MOST
  if (has_code(row)) most += fragments_.text(kCodeAttributes, called(row)).size();
  if (flags[row] & kError) {
    most += fragments_.text(kErrorTypeAttribute, error[row]).size() + fragments_.text(kExceptionEvent, error[row]).size();
    most += fragments_.text(kErrorStatus, error[row]).size() + fragments_.text(kExceptionStacktrace, stacktrace[row]).size();
  }
  return most;
}

size_t OtlpSpans::encode(char* begin, int64_t* ends) const {
  WireWriter out(begin);
  for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
    out.tag<tags::scope_spans::kSpans>();
    char* length = out.begin_length();
    encode_span(out, i);
    out.end_length(length);
    ends[i] = out.at() - begin;
  }
  return static_cast<size_t>(out.at() - begin);
}

void OtlpSpans::encode_span(WireWriter& out, Py_ssize_t i) const {
  const Py_ssize_t row = rows_[i];
  const bool plain = is_plain(row);
  const auto start = static_cast<uint64_t>(std::max<int64_t>(start_ns[row], 0));
  const auto end = std::max(static_cast<uint64_t>(std::max<int64_t>(end_ns[row], 0)), start);
  encode_place(out, i);
  out.padded(fragments_.text(kNameField, name[row]));
  out.tag<tags::span::kKind>();
  out.byte(kInternalKind);
  time_field<tags::span::kStartTime>(out, start);
  time_field<tags::span::kEndTime>(out, end);
  out.padded(fragments_.text(kScopeAndThread, scope_and_thread(row)));
  encode_usual(out, row);
  if (!plain) encode_seldom(out, row);
  out.padded(fragments_.told(row));
  if (!plain) encode_events(out, row, end);
  if (linked_id_[i]) encode_link(out, i);
  encode_status(out, row);
  out.tag<tags::span::kFlags>();
  out.fixed32(kSpanFlags);
}

// Where in its trace the span is.
void OtlpSpans::encode_place(WireWriter& out, Py_ssize_t i) const {
  const Above& above = spans_above_[static_cast<size_t>(above_[i])];
  trace_id_field<tags::span::kTraceId>(out, above.trace_id);
  span_id_field<tags::span::kSpanId>(out, span_id_of(event_id[rows_[i]], key_));
  out.padded({above.state.data(), above.state_size});
  span_id_field<tags::span::kParentSpanId>(out, parent_[i] ? span_id_of(parent_[i], key_) : above.span_id);
}

#define RECFN_INT_ATTRIBUTE(type, name, empty, attribute, ...) \
  if (sizeof attribute > 1 && name[row] != static_cast<type>(empty)) int_attribute(out, attribute, static_cast<int64_t>(name[row]));

void OtlpSpans::encode_usual(WireWriter& out, Py_ssize_t row) const {
  RECFN_COLUMNS(RECFN_INT_ATTRIBUTE, RECFN_NO_COLUMN, RECFN_NO_COLUMN, RECFN_NO_COLUMN)
}

void OtlpSpans::encode_seldom(WireWriter& out, Py_ssize_t row) const {
  if (flags[row] & kAsync) true_attribute(out, "recfn.async");
  if (flags[row] & kPartial) true_attribute(out, "recfn.partial");
  if (flags[row] & kError) out.padded(fragments_.text(kErrorTypeAttribute, error[row]));
#define RECFN_TEXT_ATTRIBUTE(type, name, empty, attribute, ...) \
  if (sizeof attribute > 1 && name[row]) out.padded(fragments_.text(k_##name##_text, name[row]));
  RECFN_COLUMNS(RECFN_NO_COLUMN, RECFN_NO_COLUMN, RECFN_INT_ATTRIBUTE, RECFN_NO_COLUMN)
  RECFN_TEXT_COLUMNS(RECFN_TEXT_ATTRIBUTE)
#undef RECFN_TEXT_ATTRIBUTE
#undef RECFN_INT_ATTRIBUTE
  if (has_code(row)) out.padded(fragments_.text(kCodeAttributes, called(row)));
}

void OtlpSpans::encode_events(WireWriter& out, Py_ssize_t row, uint64_t time) const {
  if (flags[row] & kError) {
    const std::string_view exception = fragments_.text(kExceptionEvent, error[row]);
    const std::string_view raised_at = fragments_.text(kExceptionStacktrace, stacktrace[row]);
    begin_event(out, time, exception.size() + raised_at.size());
    out.padded(exception);
    out.padded(raised_at);
  }
  if (flags[row] & kClockJumped) {
    static const char jumped[] = "wall clock jumped";
    constexpr size_t size = sizeof jumped - 1;
    begin_event(out, time, 2 + size);
    out.tag<tags::event::kName>();
    out.byte(static_cast<uint8_t>(size));
    out.literal(jumped);
  }
}

void OtlpSpans::encode_link(WireWriter& out, Py_ssize_t i) const {
  out.tag<tags::span::kLinks>();
  out.byte(kLinkBytes);
  trace_id_field<tags::link::kTraceId>(out, spans_above_[static_cast<size_t>(linked_above_[i])].trace_id);
  span_id_field<tags::link::kSpanId>(out, linked_id_[i]);
  out.tag<tags::link::kFlags>();
  out.fixed32(kSpanFlags);
}

// Written also where it is empty, as the official encoder does.
void OtlpSpans::encode_status(WireWriter& out, Py_ssize_t row) const {
  if (flags[row] & kError) {
    out.padded(fragments_.text(kErrorStatus, error[row]));
  } else {
    out.tag<tags::span::kStatus>();
    out.byte(0);
  }
}

}  // namespace recfn
