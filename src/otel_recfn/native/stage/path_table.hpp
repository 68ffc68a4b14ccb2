// Where paths stand in a list: a hash table, by the place of what each lies in, and by the key of
// its ranges.
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
