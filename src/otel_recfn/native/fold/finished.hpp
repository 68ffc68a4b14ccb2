// What folding tells of finished units, in columns. Python's `batches/fold/finished.py` says what they mean.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fold/folded_tree.hpp"

// X(type, name)
#define RECFN_FINISHED_COLUMNS(X) \
  X(uint64_t, kept) \
  X(int64_t, kept_row) \
  X(int64_t, kept_unit) \
  X(uint64_t, kept_parent) \
  X(int64_t, kept_self_ns) \
  X(uint8_t, kept_forced) \
  X(int64_t, path_unit) \
  X(int64_t, path_holder) \
  X(int64_t, path_above) \
  X(uint32_t, path_name) \
  X(int64_t, path_count) \
  X(int64_t, path_total_ns) \
  X(int64_t, path_self_ns) \
  X(int64_t, path_shortest_ns) \
  X(int64_t, path_longest_ns) \
  X(int64_t, path_first_ns) \
  X(uint64_t, path_first_id) \
  X(int64_t, path_digits) \
  X(int64_t, path_counts_end) \
  X(int64_t, counts) \
  X(uint64_t, linkable) \
  X(int64_t, linkable_unit) \
  X(int64_t, linkable_holder)

namespace recfn::folding {

template <typename T>
class FinishedColumn {
 public:
  void add(T value) { *add_zeros(1) = value; }

  // Where they stand, until more are added.
  T* add_zeros(size_t values) {
    reserve(values);
    T* first = reinterpret_cast<T*>(bytes_.data()) + size_;
    size_ += values;
    return first;
  }

  void reserve(size_t more) {
    const size_t needed = (size_ + more) * sizeof(T);
    if (needed > bytes_.size()) bytes_.resize(bytes_.empty() ? needed : std::max(needed, 2 * bytes_.size()));
  }

  int64_t size() const { return static_cast<int64_t>(size_); }

  std::vector<char> take() {
    bytes_.resize(size_ * sizeof(T));
    return std::move(bytes_);
  }

 private:
  std::vector<char> bytes_;  // zeros behind what was added
  size_t size_ = 0;
};

class FinishedColumns {
 public:
#define RECFN_COLUMN(type, name) FinishedColumn<type> name;
  RECFN_FINISHED_COLUMNS(RECFN_COLUMN)
#undef RECFN_COLUMN

  void reserve(size_t kept, size_t paths);
  void add_kept(int64_t unit, const Range& one, uint64_t parent, int64_t self_ns, bool forced);
  // Every path before what lies in it; of several the one with the most time first.
  void add_tree(int64_t unit, int64_t holder, const FoldedTree& tree);

 private:
  struct Waiting {
    const Path* path;
    int64_t above;
  };

  void push_below(const Path& path, int64_t above);
  void add_path(int64_t unit, int64_t holder, const Waiting& one);

  std::vector<Waiting> waiting_;  // the next one last
};

}  // namespace recfn::folding
