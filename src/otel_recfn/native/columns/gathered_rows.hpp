// Rows of several batches, put together as the fields of one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpython/python.hpp"

namespace recfn {

// Rows of some batches, each by its batch and its place there. Every batch has one of them at
// least.
struct ChosenRows {
  std::vector<PyObject*> batches;  // borrowed
  std::vector<uint32_t> batch;     // the place of each row's batch among these
  std::vector<int64_t> row;

  size_t size() const { return row.size(); }
};

// A dict of a batch's fields: the columns of these rows, at least one, but for columns that all
// batches share because nothing is there; `names`, only those of the rows; `tracks`; `contexts`;
// and the latest `drained_ns`. Null with an error set.
//
// `columns` has a tuple for each column: its name, what stands for it in batches that have nothing
// there, and its table or None.
PyObject* gathered_fields(PyObject* columns, const ChosenRows& rows);

}  // namespace recfn
