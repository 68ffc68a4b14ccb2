#include "plan/span_rows.hpp"

#include "columns/equally_long.hpp"
#include "plan/root_finder.hpp"

namespace recfn {
bool RowsToPlan::take(PyObject* batch) {
  return kind.take(batch, "kind") && source.take(batch, "source") && context.take(batch, "context") &&
         parent.take(batch, "parent") && root.take(batch, "root") &&
         equally_long({kind.size(), source.size(), context.size(), parent.size(), root.size()});
}

bool find_fates(const RowsToPlan& rows, const KnownContexts& contexts, uint8_t* fates) {
  for (Py_ssize_t row = 0; row < rows.size(); ++row) {
    const uint32_t context = rows.context[row];
    if (!contexts.covers(context)) return false;
    const uint8_t fate = contexts.fate[context];
    const bool is_step = rows.source[row] == kStepSource && contexts.of_step[context] != 0 && rows.parent[row] == 0;
    fates[row] = rows.kind[row] != kRangeEvent || (is_step && fate == kInSpanFate) ? uint8_t{kNoFate} : fate;
  }
  return true;
}

bool Wanted::find(const RowsToPlan& rows, const ColumnView<uint8_t>& fates, size_t count) {
  std::vector<uint8_t> used(count);
  for (Py_ssize_t row = 0; row < rows.size(); ++row) {
    if (rows.context[row] >= count) return false;
    if (fates[row] == kInSpanFate) used[rows.context[row]] = 1;
    if (fates[row] == kRootlessFate && (roots.empty() || roots.back() != rows.root[row])) roots.push_back(rows.root[row]);
  }
  for (size_t context = 0; context < count; ++context) {
    if (used[context] != 0) contexts.push_back(static_cast<uint32_t>(context));
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return true;
}

bool PlannedRows::plan(const RowsToPlan& rows, const ColumnView<uint8_t>& fates, const ColumnView<uint8_t>& of_step,
                       const Above& above_of, const ColumnView<int64_t>* order) {
  const Py_ssize_t size = rows.size();
  resize(static_cast<size_t>(size));
  fate.resize(row.size());
  size_t planned = 0;
  RootFinder root_finder(above_of.roots);
  if (order != nullptr && order->size() != size) return false;
  for (Py_ssize_t next = 0; next < size; ++next) {
    const Py_ssize_t at = order == nullptr ? next : static_cast<Py_ssize_t>((*order)[next]);
    if (at < 0 || at >= size) return false;
    uint8_t& own = fate[static_cast<size_t>(at)] = fates[at];
    if (own < kInSpanFate) continue;
    const uint32_t context = rows.context[at];
    const Py_ssize_t known = own == kInSpanFate ? context : root_finder.find(rows.root[at]);
    if (known < 0 || context >= static_cast<size_t>(of_step.size()) || context >= static_cast<size_t>(above_of.of_context.size())) {
      return false;
    }
    const int64_t place = own == kInSpanFate ? above_of.of_context[known] : above_of.of_root[known];
    if (place < 0) {
      own = kUnsampledFate;
      continue;
    }
    const uint64_t around = rows.parent[at];
    row[planned] = at, above[planned] = place;
    parent[planned++] = of_step[context] != 0 && around == rows.root[at] ? 0 : around;  // the step's span is the program's
  }
  resize(planned);
  return true;
}

void PlannedRows::resize(size_t rows) { row.resize(rows), above.resize(rows), parent.resize(rows); }

}  // namespace recfn
