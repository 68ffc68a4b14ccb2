#include "drain/node_ids.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/registry.hpp"
#include "core/ticks.hpp"

namespace recfn {

NodeIds& node_ids() {
  static NodeIds* instance = new NodeIds;  // never destroyed, as the registry
  return *instance;
}

void NodeIds::set(int64_t node_id) {
  const std::lock_guard lock(mutex_);
  look_at_torch();
  add(node_id, read_ticks(globals().use_cycle_counter));
  tell_torch(node_id);
}

int64_t NodeIds::now() {
  const std::lock_guard lock(mutex_);
  look_at_torch();
  return newest();
}

int64_t NodeIds::found_at(uint64_t ticks) const {
  const uint64_t made = made_.load(std::memory_order_acquire);
  const uint64_t oldest = made > kKept ? made - kKept : 0;
  for (uint64_t change = made; change-- > oldest;) {
    const Change& found = changes_[change % kSlots];
    if (found.ticks.load(std::memory_order_relaxed) <= ticks || (change == oldest && oldest != 0)) {
      return found.node_id.load(std::memory_order_relaxed);
    }
  }
  return -1;
}

void NodeIds::after_fork_in_child() { new (&mutex_) std::mutex; }  // who held it is not in the child

void NodeIds::add(int64_t node_id, uint64_t ticks) {
  const uint64_t made = made_.load(std::memory_order_relaxed);
  changes_[made % kSlots].ticks.store(ticks, std::memory_order_relaxed);
  changes_[made % kSlots].node_id.store(node_id, std::memory_order_relaxed);
  made_.store(made + 1, std::memory_order_release);
}

// PyTorch refuses negative numbers: it keeps the last one then.
void NodeIds::tell_torch(int64_t node_id) {
  const auto set_torchs = globals().set_default_node_id.load();
  if (set_torchs == nullptr || node_id < 0) return;
  set_torchs(node_id);
  torchs_ = node_id;
}

// When PyTorch was told isn't known: a change counts since the last look.
void NodeIds::look_at_torch() {
  const auto read_torchs = globals().default_node_id.load();
  if (read_torchs == nullptr) return;
  if (!std::exchange(met_torch_, true) && newest() != -1) return tell_torch(newest());
  const int64_t torchs = read_torchs();
  if (torchs != std::exchange(torchs_, torchs)) add(torchs, looked_at_);
  looked_at_ = read_ticks(globals().use_cycle_counter);
}

int64_t NodeIds::newest() const { return at(UINT64_MAX); }

}  // namespace recfn
