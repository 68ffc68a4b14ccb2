// What the drain makes of the records: a row for every range, mark and change of memory, and the tables that rows index.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/begin_end.hpp"
#include "model/columns.hpp"

namespace recfn {

#define RECFN_FIELD(type, name, empty) type name = empty;

struct Row {
  int64_t offset_ns = 0;  // what makes its times Unix time: they are monotonic until it is emitted
  RECFN_ROW_COLUMNS(RECFN_FIELD)
};

// Names of what a range was left by.
struct LeftBy {
  uint32_t error = 0, stacktrace = 0;
};

struct OpenedRow {
  RECFN_ANNOUNCED_COLUMNS(RECFN_FIELD)
};

struct ThreadRow {
  uint64_t number, thread_id, native_id, ident;
};

struct Drained {
  std::vector<Row> rows;
  std::vector<OpenedRow> opened;
  std::vector<ThreadRow> threads;
  std::vector<Context> contexts;
  int64_t clock_jump_ns = 0;
  size_t closed = 0;          // rows before the copies of open ranges
  bool complete = true;       // false: memory was short, and the next drain has more
  bool has_seldom = false;    // some row has something in a column that is seldom filled
};

#undef RECFN_FIELD

}  // namespace recfn
