// The rows of a sealed batch as Chrome trace events. Output is ASCII, the same bytes as sinks/chrome_encoder.py writes; a test
// holds the two together. Times are integers from end to end: microseconds with exactly three decimals.
//
// `read` copies what is a Python object (names, threads), and only what the rows use; `encode` needs no GIL.
#pragma once
#include "chrome_writer.hpp"
#include "column_view.hpp"
#include "json_texts.hpp"
#include "module.hpp"

#include <cstdint>
#include <vector>

namespace recfn {

class ChromeEvents {
 public:
  ChromeEvents(PyObject* names, int64_t pid, int64_t base_ns)
      : quoted_(names, false, arena_), json_(names, true, arena_), pid_(pid), base_ns_(base_ns) {}

  bool read(PyObject* batch, PyObject* rows);
  size_t most_bytes() const { return most_bytes_; }
  size_t encode(char* begin) const;

 private:
  struct Columns {
    ColumnView<uint64_t> event_id, handle, forward_thread_id;
    ColumnView<int64_t> start_ns, end_ns, sequence_nr, node_id, debug_handle, flops, nbytes;
    ColumnView<uint32_t> name, thread, end_thread, flags, shapes, dtypes, module, error, stack, device;
    ColumnView<uint8_t> kind, scope, source;

    bool take(PyObject* batch);
    Py_ssize_t size() const { return event_id.size(); }

   private:
    bool equally_long() const;
  };

  // What an event says of its thread, as texts of the arena.
  struct Thread {
    uint32_t place;       // ,"pid":1,"tid":2,"ts":
    uint32_t logical_id;  // RecordFunction's
  };

  bool read_threads(PyObject* batch);
  bool read_thread(PyObject* info);
  bool read_texts();
  bool use_texts(Py_ssize_t row);
  bool in_tables(Py_ssize_t row) const;

  bool is_range(Py_ssize_t row) const;
  bool is_async(Py_ssize_t row) const;
  const Label& category(Py_ssize_t row) const;

  void encode_complete(ChromeWriter& out, Py_ssize_t row) const;
  void encode_async(ChromeWriter& out, Py_ssize_t row) const;
  void encode_instant(ChromeWriter& out, Py_ssize_t row) const;
  void encode_id(ChromeWriter& out, Py_ssize_t row) const;
  void encode_moment(ChromeWriter& out, uint32_t thread, int64_t time_ns) const;
  void encode_name(ChromeWriter& out, Py_ssize_t row) const;
  void encode_args(ChromeWriter& out, Py_ssize_t row, bool async) const;
  void encode_ids(ChromeWriter& out, Py_ssize_t row) const;
  void encode_numbers(ChromeWriter& out, Py_ssize_t row) const;
  void encode_texts(ChromeWriter& out, Py_ssize_t row) const;

  Columns columns_;
  ColumnView<int64_t> rows_;
  TextArena arena_;
  NameTexts quoted_, json_;
  std::vector<Thread> threads_;
  int64_t pid_, base_ns_;
  size_t most_bytes_ = kSlack;
};

}  // namespace recfn
