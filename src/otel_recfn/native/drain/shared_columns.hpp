// Columns that the drain fills and Python is given: the same memory, so that nothing is copied when a drain ends.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "memory/unfilled.hpp"

namespace recfn {

// What somebody is given of a column, and what keeps that alive.
struct GivenColumn {
  const char* name;
  std::shared_ptr<void> owner;
  void* first;
  size_t bytes;
};

#define RECFN_COLUMN(type, name, empty) UnfilledVector<type> name;
#define RECFN_RESIZE(type, name, empty) name.resize(capacity);
#define RECFN_COPY(type, name, empty) std::copy_n(from.name.begin(), count, name.begin());
#define RECFN_PUT(type, name, empty) name[at] = row.name;
#define RECFN_GIVE(type, name, empty) given.push_back({#name, owner, owner->name.data(), count * sizeof(type)});

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

}  // namespace recfn
