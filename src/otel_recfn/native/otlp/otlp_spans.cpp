// The rows of a plan as OTLP spans: each as the field that ScopeSpans has it in, so that any run of
// them can stand in a request. The bytes are those that the official encoder makes of the SDK's
// spans of these rows; a test holds the two together.
//
//   read    GIL      takes the columns
//   scan    GIL      what spans share: which of it there is
//   share   GIL      has it made, each once
//   encode  no GIL   the spans
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "model/columns.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"
#include "otlp/otlp_fragments.hpp"
#include "otlp/wire_writer.hpp"

namespace recfn {
namespace {

// Upper bound of a span's own bytes, without shared fragments: keys, ids, times and the digits of
// its numbers.
#define RECFN_BYTES(type, name, empty, attribute, ...) \
  +(sizeof attribute > 1 ? sizeof attribute + 24 : 0)
constexpr size_t kFixedBytes = 320 RECFN_NUMBER_COLUMNS(RECFN_BYTES);
#undef RECFN_BYTES
// Blocks of more than 32 MiB malloc maps anew each time, and the system clears them: that takes as
// long as encoding.
static_assert(kFixedBytes < 800,
              "a chunk of spans may take more than 32 MiB; make OtlpDelivery.chunk_size smaller");
constexpr uint32_t kAttributeFlags = kAsync | kPartial | kError;

// SpanFlags of trace.proto: it is known whether the parent is remote, and it isn't.
constexpr uint32_t kSpanFlags = 0x100;
constexpr uint8_t kInternalKind = 1;
constexpr uint8_t kTraceIdBytes = 16;
constexpr uint8_t kSpanIdBytes = 8;
constexpr size_t kTimeFieldBytes = 9;
constexpr size_t kLinkBytes = 2 + kTraceIdBytes + 2 + kSpanIdBytes + 5;

// A KeyValue up to its value's length. `value_bytes`, and all sizes here, are less than 128, so
// that each is one byte.
template <size_t N>
void begin_attribute(WireWriter& out, const char (&key)[N], size_t value_bytes) {
  constexpr size_t kKeyBytes = N - 1;
  static_assert(kKeyBytes < 100, "a length of more than one byte");
  out.tag<tags::kSpanAttributes>();
  out.byte(static_cast<uint8_t>(2 + kKeyBytes + 2 + value_bytes));
  out.tag<tags::kKey>();
  out.byte(static_cast<uint8_t>(kKeyBytes));
  out.literal(key);
  out.tag<tags::kValue>();
  out.byte(static_cast<uint8_t>(value_bytes));
}

template <size_t N>
void int_attribute(WireWriter& out, const char (&key)[N], int64_t value) {
  const uint64_t bits = static_cast<uint64_t>(value);
  begin_attribute(out, key, 1 + varint_size(bits));
  out.tag<tags::kIntValue>();
  out.varint(bits);
}

template <size_t N>
void true_attribute(WireWriter& out, const char (&key)[N]) {
  begin_attribute(out, key, 2);
  out.tag<tags::kBoolValue>();
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

// An event up to what follows its time, of `other_bytes`.
inline void begin_event(WireWriter& out, uint64_t time, size_t other_bytes) {
  out.tag<tags::kSpanEvents>();
  out.varint((time ? kTimeFieldBytes : 0) + other_bytes);
  time_field<tags::kEventTime>(out, time);
}

#define RECFN_INT_ATTRIBUTE(type, name, empty, attribute, ...)       \
  if (sizeof attribute > 1 && name[row] != static_cast<type>(empty)) \
    int_attribute(out, attribute, static_cast<int64_t>(name[row]));

class OtlpSpans : BatchColumns {
 public:
  // These need the GIL, and return false with an exception set. Of `parent_span` each is a trace id
  // and a trace state's field in bytes, and a span id; `key` is that of the span ids of ranges.
  bool read(PyObject* plan, PyObject* batch, PyObject* parent_span, uint64_t key) {
    key_ = key;
    return take(batch) && read_length(batch, "names", num_names_) &&
           read_length(batch, "tracks", num_tracks_) && read_plan(plan) &&
           read_parent_spans(parent_span);
  }

  bool share(PyObject* batch, PyObject* maker, PyObject* extra_fields) {
    const Reference names(PyObject_GetAttrString(batch, "names"));
    return names && fragments_.take_extra(extra_fields) && fragments_.make(names.get(), maker);
  }

  // A look at 30,000 spans takes 0.2 ms, and whoever gave the GIL back for it may wait 5 ms.
  bool scan() {
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      if (!in_tables(i)) {
        PyErr_Format(PyExc_IndexError, "row %zd names what its batch or plan has not", rows_[i]);
        return false;
      }
      each_shared(rows_[i], [this](FragmentKind kind, uint32_t index) {
        fragments_.need(kind, index, kind == kScopeAndThread ? num_tracks_ * kScopes : num_names_);
      });
    }
    return true;
  }

  size_t max_bytes() const {
    size_t max_size = 2 * kWireSlack;
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      max_size += kFixedBytes + parent_spans_[static_cast<size_t>(parent_span_[i])].state_size +
                  fragments_.extra(rows_[i]).size();
      each_shared(rows_[i], [&](FragmentKind kind, uint32_t index) {
        max_size += fragments_.text(kind, index).size();
      });
    }
    return max_size;
  }

  // Writes where each span ends to `ends`; returns where the last one does.
  size_t encode(char* begin, int64_t* ends) const {
    WireWriter out(begin);
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      out.tag<tags::kSpans>();
      char* length = out.begin_length();
      encode_span(out, i);
      out.end_length(length);
      ends[i] = out.at() - begin;
    }
    return static_cast<size_t>(out.at() - begin);
  }

  Py_ssize_t size() const { return rows_.size(); }

 private:
  struct ParentSpan {
    char trace_id[16];
    std::string state;  // kWireSlack bytes can be read from it
    size_t state_size;
    uint64_t span_id;
  };

  static bool read_length(PyObject* owner, const char* name, size_t& length) {
    const Reference sequence(PyObject_GetAttrString(owner, name));
    const Py_ssize_t found = sequence ? PySequence_Size(sequence.get()) : -1;
    if (found >= 0) length = static_cast<size_t>(found);
    return found >= 0;
  }

  bool read_plan(PyObject* plan) {
    return rows_.take(plan, "row") && own_.take(plan, "event_id") && parent_.take(plan, "parent") &&
           parent_span_.take(plan, "parent_span") && linked_id_.take(plan, "linked_id") &&
           linked_span_.take(plan, "linked_span") &&
           equally_long({rows_.size(), own_.size(), parent_.size(), parent_span_.size(),
                         linked_id_.size(), linked_span_.size()});
  }

  bool read_parent_spans(PyObject* parent_span) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parent_span); ++i) {
      const char *trace_id, *state;
      Py_ssize_t id_size, state_size;
      unsigned long long span_id;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(parent_span, i), "y#y#K", &trace_id, &id_size, &state,
                            &state_size, &span_id)) {
        return false;
      }
      if (id_size != sizeof ParentSpan::trace_id) {
        PyErr_Format(PyExc_ValueError, "a trace id of %zd bytes; pass %zu", id_size,
                     sizeof ParentSpan::trace_id);
        return false;
      }
      ParentSpan one{{},
                     std::string(state, static_cast<size_t>(state_size)),
                     static_cast<size_t>(state_size),
                     span_id};
      std::memcpy(one.trace_id, trace_id, sizeof one.trace_id);
      one.state.append(kWireSlack, '\0');
      parent_spans_.push_back(std::move(one));
    }
    return true;
  }

  bool in_tables(Py_ssize_t i) const {
    const Py_ssize_t row = rows_[i];
    const auto count = static_cast<int64_t>(parent_spans_.size());
    if (row < 0 || row >= event_id.size() || parent_span_[i] < 0 || parent_span_[i] >= count) {
      return false;
    }
    if (linked_id_[i] != 0 && (linked_span_[i] < 0 || linked_span_[i] >= count)) return false;
    size_t last = std::max({name[row], error[row], stacktrace[row], code[row]});
#define RECFN_LAST(type, name, empty, attribute, ...) \
  if constexpr (sizeof attribute > 1) last = std::max<size_t>(last, name[row]);
    RECFN_TEXT_COLUMNS(RECFN_LAST)
#undef RECFN_LAST
    return last < num_names_ && thread[row] < num_tracks_ && scope[row] < kNumScopes;
  }

  // Visits the fragments that the span of a row shares with others.
  template <typename Visit>
  void each_shared(Py_ssize_t row, Visit visit) const {
    visit(kNameField, name[row]);
    visit(kScopeAndThread, scope_and_thread(row));
    if (is_plain(row)) return;
#define RECFN_SHARED_TEXT(type, name, empty, attribute, ...) \
  if (sizeof attribute > 1 && name[row]) visit(k_##name##_text, name[row]);
    RECFN_TEXT_COLUMNS(RECFN_SHARED_TEXT)
#undef RECFN_SHARED_TEXT
    if (has_code(row)) visit(kCodeAttributes, called(row));
    if (flags[row] & kError) {
      visit(kErrorTypeAttribute, error[row]);
      visit(kExceptionEvent, error[row]);
      visit(kExceptionStacktrace, stacktrace[row]);
      visit(kErrorStatus, error[row]);
    }
  }

  // Whether it has no texts of its own, flags or code.
  bool is_plain(Py_ssize_t row) const {
    bool plain =
        (code[row] | (flags[row] & kAttributeFlags)) == 0 && source[row] != kPythonCallSource;
#define RECFN_PLAIN(type, name, empty, attribute, ...) \
  if constexpr (sizeof attribute > 1) plain = plain && name[row] == static_cast<type>(empty);
    RECFN_TEXT_COLUMNS(RECFN_PLAIN)
#undef RECFN_PLAIN
    return plain;
  }

  // Whether it is known what it is a call of, and the name of that.
  bool has_code(Py_ssize_t row) const { return source[row] == kPythonCallSource || code[row] != 0; }
  uint32_t called(Py_ssize_t row) const {
    return source[row] == kPythonCallSource ? name[row] : code[row];
  }
  uint32_t scope_and_thread(Py_ssize_t row) const { return thread[row] * kScopes + scope[row]; }

  void encode_span(WireWriter& out, Py_ssize_t i) const {
    const Py_ssize_t row = rows_[i];
    const bool plain = is_plain(row);
    const auto start = static_cast<uint64_t>(std::max<int64_t>(start_ns[row], 0));
    const auto end = std::max(static_cast<uint64_t>(std::max<int64_t>(end_ns[row], 0)), start);
    encode_source_location(out, i);
    out.padded(fragments_.text(kNameField, name[row]));
    out.tag<tags::kSpanKind>();
    out.byte(kInternalKind);
    time_field<tags::kSpanStartTime>(out, start);
    time_field<tags::kSpanEndTime>(out, end);
    out.padded(fragments_.text(kScopeAndThread, scope_and_thread(row)));
    encode_numbers(out, row);
    if (!plain) encode_optional(out, row);
    out.padded(fragments_.extra(row));
    if (!plain) encode_events(out, row, end);
    if (linked_id_[i]) encode_link(out, i);
    encode_status(out, row);
    out.tag<tags::kSpanFlags>();
    out.fixed32(kSpanFlags);
  }

  // Where in its trace the span is.
  void encode_source_location(WireWriter& out, Py_ssize_t i) const {
    const ParentSpan& parent_span = parent_spans_[static_cast<size_t>(parent_span_[i])];
    trace_id_field<tags::kSpanTraceId>(out, parent_span.trace_id);
    span_id_field<tags::kSpanId>(out, span_id_of(own_[i], key_));
    out.padded({parent_span.state.data(), parent_span.state_size});
    span_id_field<tags::kSpanParentId>(
        out, parent_[i] ? span_id_of(parent_[i], key_) : parent_span.span_id);
  }

  void encode_numbers(WireWriter& out, Py_ssize_t row) const {
    RECFN_NUMBER_COLUMNS(RECFN_INT_ATTRIBUTE)
  }

  void encode_optional(WireWriter& out, Py_ssize_t row) const {
    if (flags[row] & kAsync) true_attribute(out, "recfn.async");
    if (flags[row] & kPartial) true_attribute(out, "recfn.partial");
    if (flags[row] & kError) out.padded(fragments_.text(kErrorTypeAttribute, error[row]));
#define RECFN_TEXT_ATTRIBUTE(type, name, empty, attribute, ...) \
  if (sizeof attribute > 1 && name[row]) out.padded(fragments_.text(k_##name##_text, name[row]));
    RECFN_TEXT_COLUMNS(RECFN_TEXT_ATTRIBUTE)
#undef RECFN_TEXT_ATTRIBUTE
    if (has_code(row)) out.padded(fragments_.text(kCodeAttributes, called(row)));
  }

  void encode_events(WireWriter& out, Py_ssize_t row, uint64_t time) const {
    if (flags[row] & kError) {
      const std::string_view exception = fragments_.text(kExceptionEvent, error[row]);
      const std::string_view raised_at = fragments_.text(kExceptionStacktrace, stacktrace[row]);
      begin_event(out, time, exception.size() + raised_at.size());
      out.padded(exception);
      out.padded(raised_at);
    }
  }

  void encode_link(WireWriter& out, Py_ssize_t i) const {
    out.tag<tags::kSpanLinks>();
    out.byte(kLinkBytes);
    trace_id_field<tags::kLinkTraceId>(
        out, parent_spans_[static_cast<size_t>(linked_span_[i])].trace_id);
    span_id_field<tags::kLinkSpanId>(out, linked_id_[i]);
    out.tag<tags::kLinkFlags>();
    out.fixed32(kSpanFlags);
  }

  // Written also where it is empty, as the official encoder does.
  void encode_status(WireWriter& out, Py_ssize_t row) const {
    if (flags[row] & kError) {
      out.padded(fragments_.text(kErrorStatus, error[row]));
    } else {
      out.tag<tags::kSpanStatus>();
      out.byte(0);
    }
  }

  static constexpr uint32_t kScopes = 16;

  ColumnView<int64_t> rows_, parent_span_, linked_span_;
  ColumnView<uint64_t> own_, parent_, linked_id_;  // `own_`: what span ids are made of
  uint64_t key_ = 0;
  std::vector<ParentSpan> parent_spans_;
  size_t num_names_ = 0, num_tracks_ = 0;
  OtlpFragments fragments_;
};

#undef RECFN_INT_ATTRIBUTE

constexpr Py_ssize_t kManySpans = 500;  // which take some 0.1 ms

struct Encoded {
  std::vector<char> bytes;
  std::vector<int64_t> ends;
};

// In one piece, because a program in Python gives the GIL back after milliseconds.
bool encode(const OtlpSpans& spans, Encoded& encoded) {
  return without_gil_if(spans.size() > kManySpans, [&] {
    const std::unique_ptr<char[]> scratch(new char[spans.max_bytes()]);
    encoded.ends.resize(static_cast<size_t>(spans.size()));
    const size_t size = spans.encode(scratch.get(), encoded.ends.data());
    encoded.bytes.assign(scratch.get(), scratch.get() + size);
  });
}

PyObject* encode_spans(PyObject*, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"plan", "parent_span", "key", "fragment", "extra_fields", nullptr};
  PyObject *plan, *parent_span, *fragment, *extra_fields;
  unsigned long long key;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O$O!KOO!:encode_otlp_spans",
                                   const_cast<char**>(names), &plan, &PyList_Type, &parent_span,
                                   &key, &fragment, &PyDict_Type, &extra_fields)) {
    return nullptr;
  }
  const Reference batch(PyObject_GetAttrString(plan, "batch"));
  if (!batch) return nullptr;
  return guarded([&]() -> PyObject* {
    OtlpSpans spans;
    Encoded encoded;
    if (!spans.read(plan, batch.get(), parent_span, key) || !spans.scan() ||
        !spans.share(batch.get(), fragment, extra_fields)) {
      return nullptr;
    }
    return encode(spans, encoded) ? column_tuple(encoded.bytes, encoded.ends) : nullptr;
  });
}

PyMethodDef functions[] = {
    {"encode_otlp_spans", with_keywords(encode_spans), METH_VARARGS | METH_KEYWORDS,
     "encode_otlp_spans(plan, *, parent_span, key, fragment, extra_fields)\n--\n\n"
     "(bytes, ends): the spans of a plan as fields of ScopeSpans, and of each where it ends, as "
     "int64: objects with the buffer protocol."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_otlp_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
