#include "drain/node_ids.hpp"

#include "core/clock.hpp"
#include "core/registry.hpp"

namespace recfn {
namespace {

uint64_t ticks_now() { return read_ticks(globals().use_cycle_counter); }

}  // namespace

NodeIds& node_ids() {
  static NodeIds* instance = new NodeIds;  // never destroyed, as the registry
  return *instance;
}

void NodeIds::set(int64_t node_id) {
  const std::lock_guard lock(mutex_);
  follow_torch();
  if (const auto set_torchs = observer_hooks(globals()).set_default_node_id) {
    if (node_id < 0) return;
    set_torchs(node_id);
  }
  globals().node_id.store(node_id);
  add(node_id, ticks_now());
}

int64_t NodeIds::now() {
  const std::lock_guard lock(mutex_);
  follow_torch();
  return at(UINT64_MAX);
}

int64_t NodeIds::find(uint64_t ticks) const {
  const uint64_t made = num_changes_.load(std::memory_order_acquire);
  const uint64_t oldest = made > kNoted ? made - kNoted : 0;
  for (uint64_t change = made; change-- > oldest;) {
    const Change& found = changes_[change % kSlots];
    const bool is_oldest_of_many = change == oldest && oldest != 0;
    if (found.ticks.load(std::memory_order_relaxed) <= ticks || is_oldest_of_many) {
      return found.node_id.load(std::memory_order_relaxed);
    }
  }
  return -1;
}

void NodeIds::add(int64_t node_id, uint64_t ticks) {
  const uint64_t made = num_changes_.load(std::memory_order_relaxed);
  changes_[made % kSlots].ticks.store(ticks, std::memory_order_relaxed);
  changes_[made % kSlots].node_id.store(node_id, std::memory_order_relaxed);
  // Release, for the acquire with which it is read: the change is written before it counts.
  num_changes_.store(made + 1, std::memory_order_release);
}

// When others changed PyTorch's default is not known: that counts from when PyTorch was asked last.
void NodeIds::follow_torch() {
  const auto read_torchs = observer_hooks(globals()).default_node_id;
  if (read_torchs == nullptr) return;
  const int64_t torchs = read_torchs();
  if (torchs != at(UINT64_MAX)) add(torchs, followed_at_);
  followed_at_ = ticks_now();
}

}  // namespace recfn
