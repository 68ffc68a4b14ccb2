// The columns of a batch that its Chrome events are made of.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"

#include <cstddef>
#include <cstdint>

namespace recfn {

constexpr size_t kNumScopes = 10;  // of RecordScope

struct ChromeColumns {
  ColumnView<uint64_t> event_id, handle, forward_thread_id;
  ColumnView<int64_t> start_ns, end_ns, sequence_nr, node_id, debug_handle, flops, nbytes;
  ColumnView<uint32_t> name, thread, end_thread, flags, shapes, dtypes, module, error, stack, device;
  ColumnView<uint8_t> kind, scope, source;

  bool take(PyObject* batch);
  Py_ssize_t size() const { return event_id.size(); }

  bool is_range(Py_ssize_t row) const { return kind[row] == kRange; }
  bool is_memory(Py_ssize_t row) const { return kind[row] == kMemory; }
  // What may end elsewhere or out of turn: as a slice it could overlap others of its thread.
  bool is_async(Py_ssize_t row) const { return (flags[row] & kAsync) != 0 || thread[row] != end_thread[row]; }
  bool is_partial(Py_ssize_t row) const { return (flags[row] & kPartial) != 0; }

 private:
  static constexpr uint8_t kRange = 0, kMemory = 2;     // EventKind
  static constexpr uint32_t kAsync = 1, kPartial = 16;  // EventFlag
  bool equally_long() const;
};

}  // namespace recfn
