// Which node of a distributed run the process was at each moment: the program says so in Python, or torch.distributed in PyTorch.
//
// A begin doesn't write it. The few changes are kept with the moments at which they were made, and the drain looks a row's up.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "core/clock.hpp"
#include "core/registry.hpp"

namespace recfn {

// The newest changes.
struct NodeChanges {
  struct Change {
    uint64_t ticks;
    int64_t node_id;
  };

  // The node when that many ticks had passed; -1 before the first change.
  int64_t at(uint64_t ticks) const {
    for (size_t change = count; change-- > 0;) {
      if (kept[change].ticks <= ticks) return kept[change].node_id;
    }
    return count == kept.size() ? kept[0].node_id : -1;
  }

  void add(Change change) {
    if (count == kept.size()) std::move(kept.begin() + 1, kept.end(), kept.begin()), --count;
    kept[count++] = change;
  }

  std::array<Change, 128> kept{};
  size_t count = 0;
};

class NodeIds {
 public:
  // From now on. PyTorch is told, where it is observed.
  void set(int64_t node_id) {
    const std::lock_guard lock(mutex_);
    look_at_torch();
    changes_.add({read_ticks(globals().use_cycle_counter), node_id});
    tell_torch(node_id);
  }

  // With those that PyTorch was told since the last look.
  NodeChanges changes() {
    const std::lock_guard lock(mutex_);
    look_at_torch();
    return changes_;
  }

  int64_t now() { return changes().at(UINT64_MAX); }

  void after_fork_in_child() { new (&mutex_) std::mutex; }  // who held it is not in the child

 private:
  // PyTorch refuses negative numbers: it keeps the last one then.
  void tell_torch(int64_t node_id) {
    const auto set_torchs = globals().set_default_node_id.load();
    if (set_torchs == nullptr || node_id < 0) return;
    set_torchs(node_id);
    torchs_ = node_id;
  }

  // When PyTorch was told isn't known: a change counts since the last look.
  void look_at_torch() {
    const auto read_torchs = globals().default_node_id.load();
    if (read_torchs == nullptr) return;
    const int64_t newest = changes_.at(UINT64_MAX);
    if (!std::exchange(met_torch_, true) && newest != -1) return tell_torch(newest);
    const int64_t torchs = read_torchs();
    if (torchs != std::exchange(torchs_, torchs)) changes_.add({looked_at_, torchs});
    looked_at_ = read_ticks(globals().use_cycle_counter);
  }

  std::mutex mutex_;
  NodeChanges changes_;
  int64_t torchs_ = -1;     // as PyTorch was last seen to have it
  uint64_t looked_at_ = 0;  // ticks of the last look at PyTorch
  bool met_torch_ = false;
};

inline NodeIds& node_ids() {
  static NodeIds* instance = new NodeIds;  // never destroyed, as the registry
  return *instance;
}

}  // namespace recfn
