// What the drain makes of the records: a row for every range, mark and change of memory, and the tables that rows index.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/begin_end.hpp"
#include "drain/shared_columns.hpp"
#include "model/columns.hpp"

namespace recfn {

#define RECFN_FIELD(type, name, empty) type name = empty;

struct Row {
  int64_t offset_ns = 0;  // what makes its times Unix time: they are monotonic until it is emitted
  RECFN_USUAL_COLUMNS(RECFN_FIELD)
};

struct SeldomRow {
  RECFN_SELDOM_COLUMNS(RECFN_FIELD)
};

// A row that is not finished, with what few rows have.
struct FullRow : Row {
  FullRow() {}  // written, it keeps compilers from clearing all of the row before they fill it

  std::optional<SeldomRow> seldom;

  SeldomRow& fill_seldom() { return seldom ? *seldom : seldom.emplace(); }
};

// Names of what a range was left by.
struct LeftBy {
  uint32_t error = 0, stacktrace = 0;

  bool is_told() const { return (error | stacktrace) != 0; }
};

struct OpenedRow {
  RECFN_ANNOUNCED_COLUMNS(RECFN_FIELD)
};

struct ThreadRow {
  uint64_t number, thread_id, native_id, ident;
};

RECFN_SHARED_COLUMNS(UsualColumns, Row, RECFN_USUAL_COLUMNS)
RECFN_SHARED_COLUMNS(SeldomColumns, SeldomRow, RECFN_SELDOM_COLUMNS)
RECFN_SHARED_COLUMNS(OpenedColumns, OpenedRow, RECFN_ANNOUNCED_COLUMNS)

class Rows {
 public:
  size_t size() const { return usual_.size(); }
  bool empty() const { return usual_.empty(); }

  void reserve(size_t rows) { usual_.reserve(rows); }

  void add(const FullRow& row) {
    if (row.seldom || !seldom_.empty()) {
      seldom_.reserve(usual_.capacity());
      seldom_.fill_up(usual_.size());
      seldom_.add(row.seldom.value_or(SeldomRow{}));
    }
    usual_.add(row);
  }

  // All columns, but those that are seldom filled where none of them is.
  std::vector<GivenColumn> give() const {
    std::vector<GivenColumn> given = usual_.give();
    if (seldom_.empty()) return given;
    for (GivenColumn& column : seldom_.give()) given.push_back(std::move(column));
    return given;
  }

 private:
  RowsInColumns<UsualColumns> usual_;
  RowsInColumns<SeldomColumns> seldom_;  // as many, or none where no row has anything in it
};

struct Drained {
  Rows rows;
  RowsInColumns<OpenedColumns> opened;
  std::vector<ThreadRow> threads;
  std::vector<Context> contexts;
  std::vector<std::string> new_names;  // those that the caller doesn't have
  uint64_t epoch = 0;                  // of the names
  int64_t clock_jump_ns = 0;
  size_t closed = 0;  // rows before the copies of open ranges
};

#undef RECFN_FIELD

}  // namespace recfn
