// The rows of a sealed batch as Chrome trace events. Output is UTF-8, the same bytes as sinks/chrome/encoder.py writes; a test
// holds the two together. Times are integers from end to end: microseconds with exactly three decimals.
//
// `read` makes text of what is a Python object (names, tracks); `encode` writes the events around it and needs no GIL.
#pragma once
#include "chrome/chrome_columns.hpp"
#include "chrome/chrome_writer.hpp"
#include "columns/column_view.hpp"
#include "chrome/event_labels.hpp"
#include "cpython/python.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace recfn {

class ChromeEvents {
 public:
  ChromeEvents(PyObject* names, int64_t pid, int64_t base_ns) : labels_(names, columns_), pid_(pid), base_ns_(base_ns) {}

  // `python_ids`: of traced calls, by row; null where they are the event ids.
  bool read(PyObject* batch, PyObject* rows, PyObject* python_ids);
  size_t most_bytes() const { return most_bytes_; }
  size_t encode(char* begin) const;

 private:
  struct Track {
    uint64_t logical_id;  // RecordFunction's
    std::string place;    // ,"pid":1,"tid":2,"ts": and kSlack more
  };

  bool read_python_ids(PyObject* python_ids);
  bool read_tracks(PyObject* batch);
  bool read_track(PyObject* track);
  bool read_labels();
  bool in_tables(Py_ssize_t row) const;

  // Inlined into the loop of `encode`: a store of characters may alias the writer, and as soon as a call needs the writer in
  // memory, its position is read again after each store. That cost a quarter of the encoder's time.
  [[gnu::always_inline]] inline void encode_complete(ChromeWriter& out, Py_ssize_t row, uint32_t label) const;
  void encode_async(ChromeWriter& out, Py_ssize_t row, uint32_t label) const;
  void encode_instant(ChromeWriter& out, Py_ssize_t row, uint32_t label) const;
  [[gnu::always_inline]] inline void encode_id(ChromeWriter& out, Py_ssize_t row) const;
  [[gnu::always_inline]] inline void encode_moment(ChromeWriter& out, uint32_t thread, int64_t time_ns) const;
  [[gnu::always_inline]] inline void encode_args(ChromeWriter& out, Py_ssize_t row, uint32_t label, bool async) const;
  [[gnu::always_inline]] inline void encode_numbers(ChromeWriter& out, Py_ssize_t row) const;
  void encode_call(ChromeWriter& out, Py_ssize_t row, uint32_t label) const;

  ChromeColumns columns_;
  ColumnView<int64_t> rows_;
  ColumnView<uint64_t> python_ids_;
  EventLabels labels_;
  std::vector<uint32_t> label_;  // of each of the rows
  std::vector<Track> tracks_;
  int64_t pid_, base_ns_;
  size_t most_bytes_ = kSlack;
};

}  // namespace recfn
