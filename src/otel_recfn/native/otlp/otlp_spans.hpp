// The rows of a plan as OTLP spans: each as the field that ScopeSpans has it in, so that any run of them can stand in a request.
// The bytes are those that the official encoder makes of the SDK's spans of these rows; a test holds the two together.
//
//   read    GIL      takes the columns
//   scan    GIL      what spans share: which of it there is
//   share   GIL      has it made, each once
//   encode  no GIL   the spans
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "model/columns.hpp"
#include "model/events.hpp"
#include "otlp/otlp_fragments.hpp"
#include "otlp/wire_writer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace recfn {

class OtlpSpans {
 public:
  // Each with the GIL, and false with an exception set. Of `above` each is a trace id and a trace state's field in bytes, and a
  // span id; `key` is that of the span ids of ranges.
  bool read(PyObject* batch, PyObject* plan_columns, PyObject* above, uint64_t key);
  bool share(PyObject* batch, PyObject* maker, PyObject* told);

  // False where a row names what no table has; `bad_row` says which.
  bool scan();
  Py_ssize_t bad_row() const { return bad_row_; }
  size_t most_bytes() const;
  // Writes where each span ends to `ends`; returns where the last one does.
  size_t encode(char* begin, int64_t* ends) const;

  Py_ssize_t size() const { return rows_.size(); }

 private:
  struct Above {
    char trace_id[16];
    std::string state;  // kWireSlack bytes can be read from it
    size_t state_size;
    uint64_t span_id;
  };

  bool read_batch(PyObject* batch);
  bool read_plan(PyObject* columns);
  bool read_above(PyObject* above);
  bool in_tables(Py_ssize_t i) const;
  void need_shared(Py_ssize_t row);
  bool is_plain(Py_ssize_t row) const;
  size_t most_bytes_of(Py_ssize_t row) const;
  // Whether it is known what it is a call of, and the name of that.
  bool has_code(Py_ssize_t row) const { return source[row] == kPythonCallSource || code[row] != 0; }
  uint32_t called(Py_ssize_t row) const { return source[row] == kPythonCallSource ? name[row] : code[row]; }
  uint32_t scope_and_thread(Py_ssize_t row) const { return thread[row] * kScopes + scope[row]; }

  void encode_span(WireWriter& out, Py_ssize_t i) const;
  void encode_place(WireWriter& out, Py_ssize_t i) const;
  void encode_usual(WireWriter& out, Py_ssize_t row) const;
  void encode_seldom(WireWriter& out, Py_ssize_t row) const;
  void encode_events(WireWriter& out, Py_ssize_t row, uint64_t time) const;
  void encode_link(WireWriter& out, Py_ssize_t i) const;
  void encode_status(WireWriter& out, Py_ssize_t row) const;

  static constexpr uint32_t kScopes = 16;

#define RECFN_VIEW(type, name, ...) ColumnView<type> name;
  RECFN_EACH_COLUMN(RECFN_VIEW)
#undef RECFN_VIEW
  ColumnView<int64_t> rows_, above_, linked_above_;
  ColumnView<uint64_t> parent_, linked_id_;
  uint64_t key_ = 0;
  std::vector<Above> spans_above_;
  size_t num_names_ = 0, num_tracks_ = 0;
  OtlpFragments fragments_;
  Py_ssize_t bad_row_ = -1;
};

}  // namespace recfn
