// Backward nodes that wait for the range around them.
//
//     node ends ─► waits ─► the range around it ends ─┬► it is PyTorch's range around a node: both
//                                                     │  are one range (`join`)
//                                                     └► another one: the node is a range alone
//
// PyTorch runs a backward node in a range around it, which ends after it. Mostly none waits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stage/range.hpp"

namespace recfn::stage {

class BackwardNodes {
 public:
  bool empty() const { return nodes_.empty(); }

  // A range that has ended: a node waits, another one goes to `add_alone`, joined with the node in
  // it if there is one. So do the other nodes in it.
  template <typename Add>
  void add(Range one, const Add& add_alone) {
    take_nodes(one, add_alone);
    if ((one.flags & kBackwardNode) == 0) return add_alone(one);
    if (nodes_.size() == kMaxNodes) {
      add_alone(nodes_.front());
      nodes_.erase(nodes_.begin());
    }
    nodes_.push_back(one);
  }

  // Nothing more comes, so that they are alone.
  template <typename Add>
  void add_all(const Add& add_alone) {
    for (const Range& node : nodes_) add_alone(node);
    nodes_.clear();
  }

  // Appends the numbers of their rows.
  void rows(std::vector<int64_t>& numbers) const {
    for (const Range& node : nodes_) numbers.push_back(node.row);
  }

 private:
  // Those in this range, which has come: one of them may be one with it, the others are alone.
  template <typename Add>
  void take_nodes(Range& enclosing, const Add& add_alone) {
    size_t waiting = 0;
    for (const Range& node : nodes_) {
      if (node.parent != enclosing.event_id) {
        nodes_[waiting++] = node;
      } else if (!join(enclosing, node)) {
        add_alone(node);
      }
    }
    nodes_.resize(waiting);
  }

  // One waits for each thread, and each backward pass in another one, while its hooks run.
  static constexpr size_t kMaxNodes = 64;

  std::vector<Range> nodes_;
};

}  // namespace recfn::stage
