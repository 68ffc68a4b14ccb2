// Which node of a distributed run the process was at each moment: the program says so in Python, or torch.distributed in PyTorch.
//
// A begin doesn't write it. The few changes are kept with the moments at which they were made, and the drain looks a row's up.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

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

NodeIds& node_ids();

}  // namespace recfn
