#include "drain/row_columns.hpp"

#include <algorithm>
#include <utility>

namespace recfn {
namespace {

// Rows to columns, a block of rows at a time: a block stays in the cache while every column takes its part of it.
template <typename R>
class ColumnWriter {
 public:
  ColumnWriter(const UnfilledVector<R>& rows, size_t count) : rows_(rows), count_(count) {}

  // `each_field` calls add() for every field.
  template <typename EachField>
  std::vector<NamedColumn> write(EachField each_field) {
    for (first_ = 0; first_ < count_ || first_ == 0; first_ += kBlock) {
      next_ = 0;
      each_field(*this);
    }
    return std::move(columns_);
  }

  template <typename T>
  void add(const char* name, T R::*field) {
    if (next_ == columns_.size()) columns_.push_back({name, UnfilledBytes(count_ * sizeof(T))});
    auto* values = reinterpret_cast<T*>(columns_[next_++].bytes.data());
    const size_t end = std::min(count_, first_ + kBlock);
    for (size_t row = first_; row < end; ++row) values[row] = rows_[row].*field;
  }

 private:
  static constexpr size_t kBlock = 256;

  const UnfilledVector<R>& rows_;
  const size_t count_;
  std::vector<NamedColumn> columns_;
  size_t first_ = 0, next_ = 0;
};

#define RECFN_ADD_ROW_COLUMN(type, name, empty) to.add(#name, &Row::name);
void each_usual_column(ColumnWriter<Row>& to) { RECFN_USUAL_COLUMNS(RECFN_ADD_ROW_COLUMN) }
#undef RECFN_ADD_ROW_COLUMN

#define RECFN_ADD_SELDOM_COLUMN(type, name, empty) to.add(#name, &SeldomRow::name);
void each_seldom_column(ColumnWriter<SeldomRow>& to) { RECFN_SELDOM_COLUMNS(RECFN_ADD_SELDOM_COLUMN) }
#undef RECFN_ADD_SELDOM_COLUMN

#define RECFN_ADD_OPENED_COLUMN(type, name, empty) to.add(#name, &OpenedRow::name);
void each_announced_column(ColumnWriter<OpenedRow>& to) { RECFN_ANNOUNCED_COLUMNS(RECFN_ADD_OPENED_COLUMN) }
#undef RECFN_ADD_OPENED_COLUMN

}  // namespace

std::vector<NamedColumn> row_columns(const Drained& drained, size_t size) {
  const Rows& rows = drained.rows;
  std::vector<NamedColumn> columns = ColumnWriter(rows.usual(), size).write(each_usual_column);
  if (!rows.seldom().empty()) {
    for (NamedColumn& column : ColumnWriter(rows.seldom(), size).write(each_seldom_column)) columns.push_back(std::move(column));
  }
  return columns;
}

std::vector<NamedColumn> opened_columns(const Drained& drained) {
  return ColumnWriter(drained.opened, drained.opened.size()).write(each_announced_column);
}

}  // namespace recfn
