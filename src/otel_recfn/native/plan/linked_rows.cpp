#include "plan/linked_rows.hpp"

#include <algorithm>

#include "columns/equally_long.hpp"
#include "columns/ordered.hpp"
#include "model/span_id.hpp"
#include "plan/root_finder.hpp"

namespace recfn {
namespace {

// Where the span above each link's range stands.
class AboveFinder {
 public:
  AboveFinder(const LinksOfRows& links, const ColumnView<uint8_t>& fate_of_context, const Above& above)
      : links_(links), fate_of_context_(fate_of_context), above_(above), root_finder_(above.roots) {}

  // -1 where there is none. False where a context or an outermost range isn't known.
  bool find(Py_ssize_t link, int64_t& place) {
    const auto context = static_cast<Py_ssize_t>(links_.context[link]);
    if (context >= fate_of_context_.size() || context >= above_.of_context.size()) return false;
    place = -1;
    if (fate_of_context_[context] == kInSpanFate) place = above_.of_context[context];
    if (fate_of_context_[context] != kRootlessFate) return true;
    const Py_ssize_t root = root_finder_.find(links_.root[link]);
    if (root < 0) return false;
    place = above_.of_root[root];
    return true;
  }

 private:
  const LinksOfRows& links_;
  const ColumnView<uint8_t>& fate_of_context_;
  const Above& above_;
  RootFinder root_finder_;
};

// The number of each row's link, from 1 on. False where a link's row isn't one of so many.
bool find_links(const LinksOfRows& links, UnfilledVector<uint32_t>& link_of_row) {
  std::fill(link_of_row.begin(), link_of_row.end(), 0);
  for (Py_ssize_t link = 0; link < links.size(); ++link) {
    const auto row = static_cast<uint64_t>(links.row[link]);
    if (row >= link_of_row.size()) return false;
    link_of_row[row] = static_cast<uint32_t>(link + 1);
  }
  return true;
}

}  // namespace

bool LinksOfRows::take(PyObject* links) {
  return row.take(links, "row") && event_id.take(links, "event_id") && root.take(links, "root") &&
         context.take(links, "context") && equally_long({row.size(), event_id.size(), root.size(), context.size()});
}

bool LinksOfRows::find_contexts(size_t count, std::vector<uint32_t>& used) const {
  std::vector<uint8_t> marks(count);
  for (Py_ssize_t link = 0; link < size(); ++link) {
    if (context[link] >= count) return false;
    marks[context[link]] = 1;
  }
  used = marked_places(marks);
  return true;
}

bool LinksOfRows::find_roots(const ColumnView<uint8_t>& fate_of_context, std::vector<uint64_t>& roots) const {
  for (Py_ssize_t link = 0; link < size(); ++link) {
    if (context[link] >= static_cast<size_t>(fate_of_context.size())) return false;
    if (fate_of_context[context[link]] != kRootlessFate) continue;
    if (roots.empty() || roots.back() != root[link]) roots.push_back(root[link]);
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return true;
}

bool LinkedRows::find(const LinksOfRows& links, const ColumnView<uint8_t>& fate_of_context, const Above& above_of,
                      const ColumnView<int64_t>& row, size_t rows, uint64_t key) {
  UnfilledVector<uint32_t> link_of_row(rows);
  AboveFinder above_finder(links, fate_of_context, above_of);
  if (!find_links(links, link_of_row)) return false;
  id.resize(static_cast<size_t>(row.size())), above.resize(id.size());
  for (Py_ssize_t at = 0; at < row.size(); ++at) {
    const auto of = static_cast<uint64_t>(row[at]);
    if (of >= rows) return false;
    const uint32_t number = link_of_row[of];
    int64_t place = -1;
    if (number != 0 && !above_finder.find(number - 1, place)) return false;
    id[static_cast<size_t>(at)] = place < 0 ? 0 : span_id_of(links.event_id[number - 1], key);
    above[static_cast<size_t>(at)] = std::max<int64_t>(0, place);
  }
  return true;
}

}  // namespace recfn
