// Rows as columns: what Python gets of a drain.
#pragma once
#include <vector>

#include "drain/rows.hpp"
#include "memory/unfilled.hpp"

namespace recfn {

struct NamedColumn {
  const char* name;
  UnfilledBytes bytes;
};

// Of the first `size` rows, without those that are seldom filled where none of them is.
std::vector<NamedColumn> row_columns(const Drained& drained, size_t size);
std::vector<NamedColumn> opened_columns(const Drained& drained);

}  // namespace recfn
