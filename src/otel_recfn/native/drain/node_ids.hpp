// Which node of a distributed run the process was at each moment: the program says so in Python, or torch.distributed in PyTorch.
//
// A begin doesn't write it. The few changes are kept with the moments at which they were made, and the drain looks a row's up.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "core/clock.hpp"
#include "core/registry.hpp"

namespace recfn {

class NodeIds {
 public:
  // From now on. PyTorch is told, where it is observed.
  void set(int64_t node_id);
  // The newest one; asks PyTorch, which may have been told otherwise since the last look.
  int64_t now();
  // What it was when that many ticks had passed; -1 before the first change. Of very many changes the newest count.
  int64_t at(uint64_t ticks) const { return made_.load(std::memory_order_acquire) == 0 ? -1 : found_at(ticks); }
  void after_fork_in_child();

 private:
  static constexpr uint64_t kKept = 128, kSlots = 2 * kKept;  // who reads has time until as many changes are made again
  struct Change {
    std::atomic<uint64_t> ticks{0};
    std::atomic<int64_t> node_id{-1};
  };

  int64_t found_at(uint64_t ticks) const;
  void add(int64_t node_id, uint64_t ticks);
  void tell_torch(int64_t node_id);
  void look_at_torch();
  int64_t newest() const;

  std::mutex mutex_;  // of who changes it
  Change changes_[kSlots];
  std::atomic<uint64_t> made_{0};
  int64_t torchs_ = -1;       // as PyTorch was last seen to have it
  uint64_t looked_at_ = 0;    // ticks of the last look at PyTorch
  bool met_torch_ = false;
};

inline NodeIds& node_ids() {
  static NodeIds* instance = new NodeIds;  // never destroyed, as the registry
  return *instance;
}

inline void NodeIds::set(int64_t node_id) {
  const std::lock_guard lock(mutex_);
  look_at_torch();
  add(node_id, read_ticks(globals().use_cycle_counter));
  tell_torch(node_id);
}

inline int64_t NodeIds::now() {
  const std::lock_guard lock(mutex_);
  look_at_torch();
  return newest();
}

inline int64_t NodeIds::found_at(uint64_t ticks) const {
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

inline void NodeIds::after_fork_in_child() { new (&mutex_) std::mutex; }  // who held it is not in the child

inline void NodeIds::add(int64_t node_id, uint64_t ticks) {
  const uint64_t made = made_.load(std::memory_order_relaxed);
  changes_[made % kSlots].ticks.store(ticks, std::memory_order_relaxed);
  changes_[made % kSlots].node_id.store(node_id, std::memory_order_relaxed);
  made_.store(made + 1, std::memory_order_release);
}

// PyTorch refuses negative numbers: it keeps the last one then.
inline void NodeIds::tell_torch(int64_t node_id) {
  const auto set_torchs = globals().set_default_node_id.load();
  if (set_torchs == nullptr || node_id < 0) return;
  set_torchs(node_id);
  torchs_ = node_id;
}

// When PyTorch was told isn't known: a change counts since the last look.
inline void NodeIds::look_at_torch() {
  const auto read_torchs = globals().default_node_id.load();
  if (read_torchs == nullptr) return;
  if (!std::exchange(met_torch_, true) && newest() != -1) return tell_torch(newest());
  const int64_t torchs = read_torchs();
  if (torchs != std::exchange(torchs_, torchs)) add(torchs, looked_at_);
  looked_at_ = read_ticks(globals().use_cycle_counter);
}

inline int64_t NodeIds::newest() const { return at(UINT64_MAX); }

}  // namespace recfn
