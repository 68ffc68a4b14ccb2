// The indices of paths in a list: a hash table, by the index of the enclosing path and the key of a
// path's ranges.
//
//     edges    |       | (0, Net) 1 | (1, layer) 2 |       | (1, mm) 3 |      a power of two
//                        ^ slot of (0, Net), and of (1, layer), which has the next free one
//
// Nothing is removed alone, so a search may stop at the first free slot. At most half of the slots
// are used, which keeps searches short.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/numbers.hpp"

namespace recfn::stage {

class PathTable {
 public:
  static constexpr uint32_t kNone = 0;  // the index of a path without an enclosing one

  uint32_t find(uint32_t parent, uint64_t key) const {
    if (edges_.empty()) return kNone;
    size_t probe = slot(parent, key);
    while (edges_[probe].path != kNone &&
           (edges_[probe].parent != parent || edges_[probe].key != key)) {
      probe = after(probe);
    }
    return edges_[probe].path;
  }

  // A path that isn't in the table.
  void insert(uint32_t parent, uint64_t key, uint32_t path) {
    if (++count_ * 2 > edges_.size()) grow();
    put({key, parent, path});
  }

  // Removes all. Keeps places for others, but not those of a large unit, which would be filled
  // again for each small one.
  void clear() {
    edges_.assign(std::min(edges_.size(), kCapacity), Edge{});
    count_ = 0;
  }

 private:
  struct Edge {
    uint64_t key = 0;
    uint32_t parent = 0, path = kNone;
  };
  static constexpr size_t kCapacity = 1 << 12;

  void put(const Edge& edge) {
    size_t probe = slot(edge.parent, edge.key);
    while (edges_[probe].path != kNone) probe = after(probe);
    edges_[probe] = edge;
  }

  void grow() {
    std::vector<Edge> before(std::max<size_t>(64, 2 * edges_.size()));
    edges_.swap(before);
    for (const Edge& edge : before) {
      if (edge.path != kNone) put(edge);
    }
  }

  size_t slot(uint32_t parent, uint64_t key) const {
    return scrambled(key ^ uint64_t{parent} << 32) & (edges_.size() - 1);
  }
  size_t after(size_t probe) const { return (probe + 1) & (edges_.size() - 1); }

  std::vector<Edge> edges_;  // none, or a power of two
  size_t count_ = 0;
};

}  // namespace recfn::stage
