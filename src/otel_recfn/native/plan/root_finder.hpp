// Outermost ranges among those that are known.
#pragma once
#include <cstdint>

#include "columns/ordered.hpp"

namespace recfn {

// The place of an outermost range in `roots`, or -1. Rows of one mostly stand together.
class RootFinder {
 public:
  explicit RootFinder(const ColumnView<uint64_t>& roots) : roots_(roots) {}

  Py_ssize_t find(uint64_t root) {
    if (found_ >= 0 && last_ == root) return found_;
    last_ = root;
    return found_ = place_in_ordered(roots_, root);
  }

 private:
  const ColumnView<uint64_t>& roots_;
  uint64_t last_ = 0;
  Py_ssize_t found_ = -1;
};

}  // namespace recfn
