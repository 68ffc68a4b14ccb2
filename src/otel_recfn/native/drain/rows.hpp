// What the drain makes of the records: a row for every range, mark and change of memory, and the tables that rows index.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/thread_buffer.hpp"

namespace recfn {

struct Row {
  uint64_t event_id, handle, parent, root, forward_thread_id;
  int64_t start_ns, end_ns, sequence_nr, debug_handle, flops, nbytes;  // the first two monotonic until it is emitted
  int64_t offset_ns;  // what makes them Unix time
  uint32_t name, thread, end_thread, context, flags, shapes, dtypes, module, error, profiler, stack, device;
  uint8_t kind, scope, source;
};

inline Row no_row() {
  Row row{};
  row.sequence_nr = row.debug_handle = -1;
  return row;
}

struct OpenedRow {
  uint64_t event_id;
  uint32_t name, source, thread, context;
  int64_t start_ns;
};

struct ThreadRow {
  uint64_t number, thread_id, native_id, ident;
};

struct Drained {
  std::vector<Row> rows;
  std::vector<OpenedRow> opened;
  std::vector<ThreadRow> threads;
  std::vector<Context> contexts;
  int64_t node_id = -1;
  int64_t clock_jump_ns = 0;
  size_t closed = 0;          // rows before the copies of open ranges
  bool complete = true;       // false: memory was short, and the next drain has more
  bool has_uncommon = false;  // profiler, flops, stack, nbytes or device of some row isn't zero
};

}  // namespace recfn
