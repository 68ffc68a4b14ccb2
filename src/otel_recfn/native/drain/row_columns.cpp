#include "drain/row_columns.hpp"

#include <algorithm>
#include <utility>

namespace recfn {
namespace {

// Rows to columns, a block of rows at a time: a block stays in the cache while every column takes its part of it.
template <typename R>
class ColumnWriter {
 public:
  ColumnWriter(const std::vector<R>& rows, size_t count) : rows_(rows), count_(count) {}

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
    if (next_ == columns_.size()) columns_.push_back({name, std::vector<char>(count_ * sizeof(T))});
    auto* values = reinterpret_cast<T*>(columns_[next_++].bytes.data());
    const size_t end = std::min(count_, first_ + kBlock);
    for (size_t row = first_; row < end; ++row) values[row] = rows_[row].*field;
  }

 private:
  static constexpr size_t kBlock = 256;

  const std::vector<R>& rows_;
  const size_t count_;
  std::vector<NamedColumn> columns_;
  size_t first_ = 0, next_ = 0;
};

void each_row_field(ColumnWriter<Row>& to) {
  to.add("event_id", &Row::event_id), to.add("name", &Row::name), to.add("scope", &Row::scope);
  to.add("source", &Row::source), to.add("start_ns", &Row::start_ns), to.add("end_ns", &Row::end_ns);
  to.add("thread", &Row::thread), to.add("end_thread", &Row::end_thread), to.add("sequence_nr", &Row::sequence_nr);
  to.add("forward_thread_id", &Row::forward_thread_id), to.add("handle", &Row::handle), to.add("parent", &Row::parent);
  to.add("root", &Row::root), to.add("context", &Row::context), to.add("debug_handle", &Row::debug_handle);
  to.add("flags", &Row::flags), to.add("shapes", &Row::shapes), to.add("dtypes", &Row::dtypes);
  to.add("module", &Row::module), to.add("error", &Row::error), to.add("kind", &Row::kind);
}

void each_uncommon_field(ColumnWriter<Row>& to) {
  to.add("profiler", &Row::profiler), to.add("flops", &Row::flops), to.add("stack", &Row::stack);
  to.add("nbytes", &Row::nbytes), to.add("device", &Row::device);
}

void each_opened_field(ColumnWriter<OpenedRow>& to) {
  to.add("event_id", &OpenedRow::event_id), to.add("name", &OpenedRow::name), to.add("source", &OpenedRow::source);
  to.add("start_ns", &OpenedRow::start_ns), to.add("thread", &OpenedRow::thread), to.add("context", &OpenedRow::context);
}

}  // namespace

std::vector<NamedColumn> row_columns(const Drained& drained, size_t size) {
  std::vector<NamedColumn> columns = ColumnWriter(drained.rows, size).write(each_row_field);
  if (drained.has_uncommon) {
    for (NamedColumn& column : ColumnWriter(drained.rows, size).write(each_uncommon_field)) columns.push_back(std::move(column));
  }
  std::vector<char> node_ids(size * sizeof(int64_t));
  std::fill_n(reinterpret_cast<int64_t*>(node_ids.data()), size, drained.node_id);
  columns.push_back({"node_id", std::move(node_ids)});
  return columns;
}

std::vector<NamedColumn> opened_columns(const Drained& drained) {
  return ColumnWriter(drained.opened, drained.opened.size()).write(each_opened_field);
}

}  // namespace recfn
