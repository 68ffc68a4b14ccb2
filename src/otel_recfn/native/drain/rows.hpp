// What the drain makes of the records: a row for every range, mark and change of memory, and the tables that rows index.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/begin_end.hpp"
#include "memory/unfilled.hpp"
#include "model/columns.hpp"

namespace recfn {

// Columns that the drain fills and Python is given: the same memory, so that nothing is copied when a drain ends.

// What somebody is given of a column, and what keeps that alive.
struct GivenColumn {
  const char* name;
  std::shared_ptr<void> owner;
  void* first;
  size_t bytes;
};

#define RECFN_COLUMN(type, name, empty, ...) UnfilledVector<type> name;
#define RECFN_RESIZE(type, name, empty, ...) name.resize(capacity);
#define RECFN_COPY(type, name, empty, ...) std::copy_n(from.name.begin(), count, name.begin());
#define RECFN_PUT(type, name, empty, ...) name[at] = row.name;
#define RECFN_GIVE(type, name, empty, ...) given.push_back({#name, owner, owner->name.data(), count * sizeof(type)});

// A column for each field of a row.
#define RECFN_SHARED_COLUMNS(Columns, RowType, TABLE)                                                                          \
  struct Columns {                                                                                                             \
    using Item = RowType;                                                                                                      \
    explicit Columns(size_t capacity) { TABLE(RECFN_RESIZE) }                                                                  \
    void copy(const Columns& from, size_t count) { TABLE(RECFN_COPY) }                                                         \
    void put(size_t at, const Item& row) { TABLE(RECFN_PUT) }                                                                  \
    static std::vector<GivenColumn> give(const std::shared_ptr<Columns>& owner, size_t count) {                                \
      std::vector<GivenColumn> given;                                                                                          \
      TABLE(RECFN_GIVE)                                                                                                        \
      return given;                                                                                                            \
    }                                                                                                                          \
    TABLE(RECFN_COLUMN)                                                                                                        \
  };

// The rows of such columns.
template <typename Columns>
class RowsInColumns {
 public:
  using Row = typename Columns::Item;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t capacity() const { return capacity_; }

  void reserve(size_t rows) {
    if (rows <= capacity_) return;
    auto larger = std::make_shared<Columns>(rows);
    if (size_ != 0) larger->copy(*columns_, size_);
    columns_ = std::move(larger);
    capacity_ = rows;
  }

  void add(const Row& row) {
    if (size_ == capacity_) reserve(std::max<size_t>(4, 2 * size_));
    columns_->put(size_++, row);
  }
  // Rows in which there is nothing, up to so many rows.
  void fill_up(size_t size) {
    while (size_ < size) add(Row{});
  }

  std::vector<GivenColumn> give() const { return Columns::give(columns_ ? columns_ : std::make_shared<Columns>(0), size_); }

 private:
  std::shared_ptr<Columns> columns_;  // null where there is no room
  size_t size_ = 0, capacity_ = 0;
};

#define RECFN_FIELD(type, name, empty, ...) type name = empty;

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
