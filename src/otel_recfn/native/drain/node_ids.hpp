// The process's node in a distributed run at each moment: the program sets it in Python,
// torch.distributed and programs in C++ set PyTorch's default.
//
// Begins and ends don't write it, as most programs never set one. The few changes are noted with
// their ticks, and the drain looks up the node of each moment that it reads:
//
//     changes_   | ticks 10: node 0 | ticks 90: node 3 | ticks 250: node 4 | ...   in a circle
//
//     at(120) ─► from the newest back to the first that isn't later: 3
//
// Whoever reads takes no lock. Of 256 slots the newest 128 count, so that a slot that is read is
// written again only after 128 more changes.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

namespace recfn {

class NodeIds {
 public:
  // From now on. Where PyTorch is observed its default is set, too; as it refuses negative numbers,
  // those change nothing then.
  void set(int64_t node_id);

  // The one of now: PyTorch's where that is observed, else what the program set. -1: none.
  int64_t now();

  // The one of that moment. Of more changes than are noted the newest count.
  int64_t at(uint64_t ticks) const {
    return num_changes_.load(std::memory_order_acquire) == 0 ? -1 : find(ticks);
  }

  // Around fork(2).
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  static constexpr uint64_t kNoted = 128;
  static constexpr uint64_t kSlots = 2 * kNoted;
  struct Change {
    std::atomic<uint64_t> ticks{0};
    std::atomic<int64_t> node_id{-1};
  };

  [[gnu::cold]] int64_t find(uint64_t ticks) const;
  void add(int64_t node_id, uint64_t ticks);
  void follow_torch();

  std::mutex mutex_;  // of those that add changes
  Change changes_[kSlots];
  std::atomic<uint64_t> num_changes_{0};
  uint64_t followed_at_ = 0;  // ticks at which PyTorch was asked last
};

NodeIds& node_ids();

}  // namespace recfn
