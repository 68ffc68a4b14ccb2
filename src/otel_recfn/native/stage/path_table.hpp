// Where paths stand in a list: a hash table, by the place of what each lies in and by its name.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/numbers.hpp"

namespace recfn::stage {

class PathTable {
 public:
  static constexpr uint32_t kNone = 0;  // the place of a path that lies in none

  uint32_t find(uint32_t above, uint32_t name) const {
    if (edges_.empty()) return kNone;
    size_t at = home(above, name);
    while (edges_[at].path != kNone && (edges_[at].above != above || edges_[at].name != name))
      at = after(at);
    return edges_[at].path;
  }

  // A path that isn't in the table.
  void insert(uint32_t above, uint32_t name, uint32_t path) {
    if (++count_ * 2 > edges_.size()) grow();
    put({above, name, path});
  }

  // Removes all. Keeps places for others, but not those of a large unit, which would be filled
  // again for each small one.
  void clear() {
    edges_.assign(std::min(edges_.size(), kKept), Edge{});
    count_ = 0;
  }

 private:
  struct Edge {
    uint32_t above = 0, name = 0, path = kNone;
  };
  static constexpr size_t kKept = 1 << 12;

  void put(const Edge& edge) {
    size_t at = home(edge.above, edge.name);
    while (edges_[at].path != kNone) at = after(at);
    edges_[at] = edge;
  }

  void grow() {
    std::vector<Edge> before(std::max<size_t>(64, 2 * edges_.size()));
    edges_.swap(before);
    for (const Edge& edge : before) {
      if (edge.path != kNone) put(edge);
    }
  }

  size_t home(uint32_t above, uint32_t name) const {
    return scrambled(uint64_t{above} << 32 | name) & (edges_.size() - 1);
  }
  size_t after(size_t at) const { return (at + 1) & (edges_.size() - 1); }

  std::vector<Edge> edges_;  // none, or a power of two
  size_t count_ = 0;
};

}  // namespace recfn::stage
