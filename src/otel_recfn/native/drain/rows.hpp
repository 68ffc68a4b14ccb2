// What the drain makes of the records: a row for every range, mark and change of memory, and the
// tables that rows index.
//
//     Row ─► usual columns     │ event_id │ start_ns │ end_ns │ name │ ...    each range has them
//            optional columns  │          ·          │ error  │ shapes│ ...   few ranges have any
//                              └ begun with the first row that has one, then a value for each row
//
// A range that ends is written where Python reads it: the drain makes columns with room for all
// rows that can come, and the batch shares that memory. Rows that were gathered first, and written
// as columns then, cost a third of a drain. Columns that are seldom filled are not written where
// none of a drain's rows has them: all batches share the memory of their empty ones.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/shapes.hpp"
#include "core/thread_buffer.hpp"
#include "drain/python_samples.hpp"
#include "drain/training_steps.hpp"
#include "memory/unfilled.hpp"
#include "model/columns.hpp"
#include "model/fields.hpp"

namespace recfn {

// Columns that the drain fills and Python is given: the same memory, so that nothing is copied when
// a drain ends.

// What somebody is given of a column, and what keeps that alive.
struct OwnedColumn {
  const char* name;
  std::shared_ptr<void> owner;
  void* first;
  size_t bytes;
};

#define RECFN_COLUMN(type, name, empty, ...) UnfilledVector<type> name;
#define RECFN_RESIZE(type, name, empty, ...) name.resize(capacity);
#define RECFN_COPY(type, name, empty, ...) std::copy_n(from.name.begin(), count, name.begin());
#define RECFN_PUT(type, name, empty, ...) name[i] = row.name;
#define RECFN_GIVE(type, name, empty, ...) \
  columns.push_back({#name, owner, owner->name.data(), count * sizeof(type)});

// A column for each field of a row.
#define RECFN_SHARED_COLUMNS(Columns, RowType, TABLE)                                      \
  struct Columns {                                                                         \
    using Item = RowType;                                                                  \
    explicit Columns(size_t capacity) { TABLE(RECFN_RESIZE) }                              \
    void copy(const Columns& from, size_t count) { TABLE(RECFN_COPY) }                     \
    void put(size_t i, const Item& row) { TABLE(RECFN_PUT) }                               \
    static std::vector<OwnedColumn> release_columns(const std::shared_ptr<Columns>& owner, \
                                                    size_t count) {                        \
      std::vector<OwnedColumn> columns;                                                    \
      TABLE(RECFN_GIVE)                                                                    \
      return columns;                                                                      \
    }                                                                                      \
    TABLE(RECFN_COLUMN)                                                                    \
  };

// Rows as columns that grow: what is given of them stays where it is.
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

  std::vector<OwnedColumn> release_columns() const {
    return Columns::release_columns(columns_ ? columns_ : std::make_shared<Columns>(0), size_);
  }

 private:
  std::shared_ptr<Columns> columns_;  // null where there is no room
  size_t size_ = 0, capacity_ = 0;
};

#define RECFN_MEMBER(type, name, empty, ...) type name = empty;

struct Row {
  int64_t offset_ns = 0;  // what makes its times Unix time: they are monotonic until it is emitted
  RECFN_USUAL_COLUMNS(RECFN_MEMBER)
};

struct OptionalFields {
  RECFN_OPTIONAL_COLUMNS(RECFN_MEMBER)

  // Has what the other one says.
  void add(const OptionalFields& more) {
#define RECFN_ADD(type, name, empty, ...) \
  if (more.name != static_cast<type>(empty)) name = more.name;
    RECFN_OPTIONAL_COLUMNS(RECFN_ADD)
#undef RECFN_ADD
  }
};

// A row that is not finished, with what few rows have.
struct FullRow : Row {
  FullRow() {}  // written, it keeps compilers from clearing all of the row before they fill it

  std::optional<OptionalFields> optional_fields;

  OptionalFields& fill_optional() {
    return optional_fields ? *optional_fields : optional_fields.emplace();
  }
};

struct OpenedRow {
  RECFN_OPENED_COLUMNS(RECFN_MEMBER)
};

struct ThreadRow {
  uint64_t number, thread_id, native_id, ident;
};

constexpr auto fields_of(const ThreadRow*) {
  return std::array{RECFN_FIELD(ThreadRow, number), RECFN_FIELD(ThreadRow, thread_id),
                    RECFN_FIELD(ThreadRow, native_id), RECFN_FIELD(ThreadRow, ident)};
}

RECFN_SHARED_COLUMNS(UsualColumns, Row, RECFN_USUAL_COLUMNS)
RECFN_SHARED_COLUMNS(OptionalColumns, OptionalFields, RECFN_OPTIONAL_COLUMNS)
RECFN_SHARED_COLUMNS(OpenedColumns, OpenedRow, RECFN_OPENED_COLUMNS)

class Rows {
 public:
  size_t size() const { return usual_.size(); }
  bool empty() const { return usual_.empty(); }

  void reserve(size_t rows) { usual_.reserve(rows); }

  void add(const FullRow& row) {
    if (row.optional_fields || !optional_columns_.empty()) add_optional(row);
    usual_.add(row);
  }

  // All columns, but those that are seldom filled where none of them is.
  std::vector<OwnedColumn> release_columns() const {
    std::vector<OwnedColumn> columns = usual_.release_columns();
    if (optional_columns_.empty()) return columns;
    for (OwnedColumn& column : optional_columns_.release_columns()) {
      columns.push_back(std::move(column));
    }
    return columns;
  }

 private:
  [[gnu::noinline]] void add_optional(const FullRow& row) {
    optional_columns_.reserve(usual_.capacity());
    optional_columns_.fill_up(usual_.size());
    optional_columns_.add(row.optional_fields.value_or(OptionalFields{}));
  }

  RowsInColumns<UsualColumns> usual_;
  RowsInColumns<OptionalColumns>
      optional_columns_;  // as many, or none where no row has anything in it
};

// Interned strings of the store. Indexes stay valid within an epoch; a pool that grew too large
// starts a new epoch with only what is still referred to, so that a program which makes a new name
// each step does not grow without end.
class NamePool {
 public:
  // Of shapes, dtypes and concrete inputs.
  using InputTexts = std::tuple<uint32_t, uint32_t, uint32_t>;

  NamePool() { intern(""); }  // index 0 means "not recorded"

  uint32_t intern(std::string_view text) {
    if (const auto found = index_.find(text); found != index_.end()) return found->second;
    const auto& live = texts_.emplace_back(text);
    const auto index = static_cast<uint32_t>(texts_.size() - 1);
    index_.emplace(live, index);
    bytes_ += live.size();
    return index;
  }

  // Inputs are few and come often: their texts are made once.
  InputTexts intern_shapes(const std::vector<uint64_t>& words) {
    const std::string_view bytes(reinterpret_cast<const char*>(words.data()), words.size() * 8);
    if (const auto found = shapes_.find(std::string(bytes)); found != shapes_.end()) {
      return found->second;
    }
    const ShapeText text = shape_text(words.data(), static_cast<uint32_t>(words.size()));
    bytes_ += bytes.size();
    const InputTexts texts{intern(text.shapes), intern(text.dtypes), intern(text.concrete)};
    return shapes_.emplace(bytes, texts).first->second;
  }

  bool too_large() const { return texts_.size() > max_texts_ || bytes_ > max_bytes_; }

  // Only the texts that are marked in `live` (one mark per text) are carried over; returns old
  // index -> new index.
  std::vector<uint32_t> start_epoch(const std::vector<bool>& live) {
    NamePool next;
    std::vector<uint32_t> moved(live.size());
    for (size_t index = 0; index < live.size(); ++index) {
      if (live[index]) moved[index] = next.intern(texts_[index]);
    }
    texts_.swap(next.texts_);
    index_.swap(next.index_);
    shapes_.swap(next.shapes_);
    bytes_ = next.bytes_;
    max_texts_ = std::max<size_t>(kMaxTexts, 2 * texts_.size());
    max_bytes_ = std::max<size_t>(kMaxBytes, 2 * bytes_);
    ++epoch_;
    return moved;
  }

  uint64_t epoch() const { return epoch_; }
  size_t size() const { return texts_.size(); }
  const std::string& text(size_t index) const { return texts_[index]; }

 private:
  static constexpr size_t kMaxTexts = 65'536;
  static constexpr size_t kMaxBytes = 8u << 20;

  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, uint32_t> index_;
  std::unordered_map<std::string, InputTexts> shapes_;
  size_t bytes_ = 0, max_texts_ = kMaxTexts, max_bytes_ = kMaxBytes;
  uint64_t epoch_ = 0;
};

struct Drained {
  Rows rows;
  RowsInColumns<OpenedColumns> opened;
  std::vector<TrainingStep> steps;             // that are over
  std::vector<TrainingStep> unfinished_steps;  // copies, as if they were over
  std::vector<Sample> samples;
  std::vector<ThreadRow> threads;
  std::vector<Context> contexts;
  std::vector<std::string> new_names;  // those that the caller doesn't have
  uint64_t epoch = 0;                  // of the names
  int64_t clock_jump_ns = 0;
  size_t closed = 0;  // rows before the copies of open ranges
};

#undef RECFN_MEMBER

}  // namespace recfn
