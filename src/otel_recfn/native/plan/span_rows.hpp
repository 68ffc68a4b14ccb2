// What becomes of each row of a batch, and above which span. Python's `batches/rows.py` says what is what.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "memory/unfilled.hpp"
#include "model/events.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

// As Python's `Fate`.
enum Fate : uint8_t { kNoFate = 0, kSuppressedFate = 1, kUnsampledFate = 2, kInSpanFate = 3, kRootlessFate = 4 };

// The columns of a batch that are read here.
struct RowsToPlan {
  ColumnView<uint8_t> kind, source;
  ColumnView<uint32_t> context;
  ColumnView<uint64_t> parent, root;

  bool take(PyObject* batch);
  Py_ssize_t size() const { return kind.size(); }
};

// What is known of contexts, by their number: the fate of ranges in it (`kInSpanFate` and so on), and whether it is a step's.
struct KnownContexts {
  ColumnView<uint8_t> fate, of_step;

  bool covers(uint32_t context) const { return context < static_cast<size_t>(fate.size()); }
};

// False where a row's context isn't known.
bool find_fates(const RowsToPlan& rows, const KnownContexts& contexts, uint8_t* fates);

// The contexts that rows are in a span of, and the outermost ranges of rows without one, each once and in ascending order.
struct Wanted {
  std::vector<uint32_t> contexts;
  std::vector<uint64_t> roots;

  // False where a row's context isn't one of `count`.
  bool find(const RowsToPlan& rows, const ColumnView<uint8_t>& fates, size_t count);
};

// Where spans stand that rows are children of, -1 where there is none; by context, and by outermost range.
struct Above {
  ColumnView<int64_t> of_context, of_root;
  ColumnView<uint64_t> roots;  // in ascending order
};

struct PlannedRows {
  UnfilledVector<uint8_t> fate;  // of all rows; what follows is of those that become spans
  UnfilledVector<int64_t> row, above;
  UnfilledVector<uint64_t> parent;

  // In that order of the rows, or (null) as they stand. False where a context, an outermost range or a row isn't known.
  bool plan(const RowsToPlan& rows, const ColumnView<uint8_t>& fates, const ColumnView<uint8_t>& of_step, const Above& above_of,
            const ColumnView<int64_t>* order);

 private:
  void resize(size_t rows);
};

}  // namespace recfn
