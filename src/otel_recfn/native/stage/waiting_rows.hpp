// The rows of batches that wait for the decision of their units, found by number. With the GIL.
//
// A batch waits as it is, and rows are copied when they are asked for: a unit mostly ends in the
// batch that it begins in, and few of its rows become spans. Rows that no unit needs any longer are
// dropped now and then, many at once.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "columns/column_view.hpp"
#include "columns/gathered_rows.hpp"
#include "cpython/python.hpp"
#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/decided.hpp"

namespace recfn::stage {

struct WaitingLimits {
  int64_t rows_to_spare;  // the rows that may wait without need
  int64_t max_batches;    // the batches that wait apart; more are merged, as each is searched
};

// How Python makes a batch. Both are borrowed of whoever has the stage.
struct BatchMaker {
  PyObject* columns;            // their descriptions, as `gathered_fields` takes them
  PyObject* batch_from_fields;  // batch_from_fields(fields, rows, each_value_once) -> a batch
};

class WaitingRows {
 public:
  WaitingRows(const WaitingLimits& limits, const BatchMaker& maker)
      : limits_(limits),
        columns_(Py_NewRef(maker.columns)),
        batch_from_fields_(Py_NewRef(maker.batch_from_fields)),
        max_rows_(limits.rows_to_spare) {}

  // Adds these rows of a batch, whose numbers follow each other from `first` on.
  void add(PyObject* batch, int64_t batch_rows, int64_t first, UnfilledVector<int64_t>&& rows) {
    if (rows.empty()) return;
    batches_.push_back({Reference(Py_NewRef(batch)), batch_rows, first, {}, std::move(rows)});
    rows_ += batch_rows;
  }

  // How many rows the batches have that wait.
  int64_t rows() const { return rows_; }

  bool is_crowded() const {
    return rows_ > max_rows_ || static_cast<int64_t>(batches_.size()) >= limits_.max_batches;
  }

  // Drops all rows but those with these numbers, which ascend. False with an error set.
  bool drop_all_but(const std::vector<int64_t>& needed) {
    const auto is_needed = [&](const WaitingBatch& one) {
      const auto found = std::lower_bound(needed.begin(), needed.end(), one.first_number());
      return found != needed.end() && *found <= one.last_number();
    };
    const auto is_unneeded = [&](const WaitingBatch& one) { return !is_needed(one); };
    batches_.erase(std::remove_if(batches_.begin(), batches_.end(), is_unneeded), batches_.end());
    rows_ = 0;
    for (const WaitingBatch& one : batches_) rows_ += one.batch_rows;
    const bool are_many = rows_ > limits_.rows_to_spare ||
                          static_cast<int64_t>(batches_.size()) > limits_.max_batches / 2;
    if (are_many && !merge(needed)) return false;
    max_rows_ = 2 * rows_ + limits_.rows_to_spare;
    return true;
  }

  // Finds rows by their numbers. False with an error set if one doesn't wait.
  template <typename Numbers>
  bool find(const Numbers& numbers, ChosenRows& chosen) const {
    std::vector<uint32_t> batch(numbers.size());  // the index of each one's batch
    std::vector<uint32_t> chosen_index(batches_.size(), kNotUsed);
    chosen.row.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto is_before = [](int64_t number, const WaitingBatch& one) {
        return number < one.first_number();
      };
      const auto after = std::upper_bound(batches_.begin(), batches_.end(), numbers[i], is_before);
      const int64_t row = after == batches_.begin() ? -1 : std::prev(after)->row_of(numbers[i]);
      if (row < 0) {
        PyErr_Format(PyExc_IndexError, "row %lld doesn't wait; only rows that units may keep do",
                     static_cast<long long>(numbers[i]));
        return false;
      }
      batch[i] = static_cast<uint32_t>(after - batches_.begin()) - 1;
      chosen.row[i] = row;
      chosen_index[batch[i]] = 0;
    }
    for (size_t i = 0; i < batches_.size(); ++i) {
      if (chosen_index[i] == kNotUsed) continue;
      chosen_index[i] = static_cast<uint32_t>(chosen.batches.size());
      chosen.batches.push_back(batches_[i].batch.get());
    }
    chosen.batch.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) chosen.batch[i] = chosen_index[batch[i]];
    return true;
  }

  // The fields of a batch of these rows, a new reference; an empty dict without rows. Null with an
  // error set.
  PyObject* fields(const ChosenRows& rows) const {
    return rows.size() == 0 ? PyDict_New() : gathered_fields(columns_.get(), rows);
  }

  // A batch of these fields, a new reference. Null with an error set.
  PyObject* batch_from_fields(PyObject* fields, size_t rows, bool each_value_once = false) const {
    return PyObject_CallFunction(batch_from_fields_.get(), "OnO", fields,
                                 static_cast<Py_ssize_t>(rows),
                                 each_value_once ? Py_True : Py_False);
  }

 private:
  // The rows of one batch, or of several that were merged.
  struct WaitingBatch {
    Reference batch;
    int64_t batch_rows;
    int64_t first;                // the number of the first row
    std::vector<int64_t> number;  // the number of each, ascending; empty: they follow each other
    UnfilledVector<int64_t> row;  // the row of each in the batch

    int64_t first_number() const { return first; }
    int64_t last_number() const {
      return number.empty() ? first + static_cast<int64_t>(row.size()) - 1 : number.back();
    }

    // The row in the batch that has a number; -1 if there is none.
    int64_t row_of(int64_t wanted) const {
      if (number.empty()) {
        const auto index = static_cast<size_t>(wanted - first);
        return index < row.size() ? row[index] : -1;
      }
      const auto found = std::lower_bound(number.begin(), number.end(), wanted);
      if (found == number.end() || *found != wanted) return -1;
      return row[static_cast<size_t>(found - number.begin())];
    }
  };
  static constexpr uint32_t kNotUsed = UINT32_MAX;

  // Makes one batch of the rows that are needed.
  bool merge(const std::vector<int64_t>& needed) {
    ChosenRows chosen;
    if (!find(needed, chosen)) return false;
    const Reference gathered(fields(chosen));
    Reference batch(gathered ? batch_from_fields(gathered.get(), needed.size(), true) : nullptr);
    if (!batch) return false;
    const auto count = static_cast<int64_t>(needed.size());
    UnfilledVector<int64_t> row(needed.size());
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<int64_t>(i);
    batches_.clear();
    if (count != 0) {
      batches_.push_back({std::move(batch), count, needed.front(), needed, std::move(row)});
    }
    rows_ = count;
    return true;
  }

  const WaitingLimits limits_;
  const Reference columns_, batch_from_fields_;
  std::vector<WaitingBatch> batches_;  // in ascending order of numbers
  int64_t rows_ = 0;
  int64_t max_rows_;  // the rows that may wait before those that no unit needs are dropped
};

// Where rows say that ranges lie.
struct RangeIndex {
  ColumnView<uint64_t> event_id, parent, root;

  // Of each of these batches. False with an error set.
  static bool take(const std::vector<PyObject*>& batches, std::vector<RangeIndex>& taken) {
    taken.resize(batches.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      RangeIndex& own = taken[i];
      if (!own.event_id.take(batches[i], "event_id") || !own.parent.take(batches[i], "parent") ||
          !own.root.take(batches[i], "root")) {
        return false;
      }
    }
    return true;
  }
};

// Sets what ranges lie in to what their rows say, but where the row is that of a backward node in
// the range. `is_open`: of those that lie in no other span, the outermost range is to be the parent
// if that is open: it says so, and notes that it will be a span. False with an error set.
template <typename IsOpen>
bool set_parents(const ChosenRows& rows, SelectedColumns& selected, bool is_partial,
                 IsOpen is_open) {
  std::vector<RangeIndex> batches;
  if (!RangeIndex::take(rows.batches, batches)) return false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RangeIndex& batch = batches[rows.batch[i]];
    const auto row = static_cast<Py_ssize_t>(rows.row[i]);
    if (batch.event_id[row] == selected.event_id[i]) selected.enclosing_id[i] = batch.parent[row];
    const bool may_have_open_root =
        is_partial && selected.parent[i] == 0 && batch.root[row] != batch.event_id[row];
    if (may_have_open_root && is_open(batch.root[row])) selected.parent[i] = batch.root[row];
  }
  return true;
}

}  // namespace recfn::stage
