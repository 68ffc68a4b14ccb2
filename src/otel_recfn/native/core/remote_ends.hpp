// Ends of ranges that began on another thread: a bounded queue, many producers, the drain its one
// consumer.
//
//     cells    | written | written |  taken  | written |  free   |  ...      4096, used in a circle
//                  ^ tail_                                ^ head_
//
//   push   1. takes the cell at head_   2. copies the end   3. says that it is written
//   drain  reads from tail_ up to the first cell that is not written, frees each
//
// A producer that is taken off its core between 1 and 3 holds up those after it, until the next
// drain. Rare (asynchronous ranges only), so it is shared by all threads; still no lock and no
// allocation.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/record.hpp"

namespace recfn {

struct RemoteEnd {
  uint64_t key;
  uint64_t begin_thread_id;  // RecordFunction's; 0 where the key is an event id
  uint64_t ticks;
  uint64_t thread_number;  // of the thread that ended it
  uint32_t flags;
  uint32_t error_size = 0;
  char error[kMaxRemoteErrorBytes] = {};
};

class RemoteEnds {
 public:
  static constexpr uint64_t kCapacity = 4096;

  void push(RemoteEnd end, const char* error, uint32_t error_size) {
    uint64_t at = head_.load(std::memory_order_relaxed);
    do {
      // Acquire, for pop's release: a cell that is free by tail_ also says that it isn't written.
      // The difference is negative where others have taken the cell since, and it was read.
      const auto waiting = static_cast<int64_t>(at - tail_.load(std::memory_order_acquire));
      if (waiting >= int64_t{kCapacity}) {
        lost_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
    } while (!head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed));
    Cell& cell = cells_[at % kCapacity];
    end.error_size = cut_at_character(error, error_size, sizeof end.error);
    if (end.error_size != 0) std::memcpy(end.error, error, end.error_size);
    cell.end = end;
    // Release, for front's acquire: whoever sees it sees the whole end.
    cell.is_written.store(true, std::memory_order_release);
  }

  // The oldest end, until pop(); null when there is none.
  const RemoteEnd* front() const {
    const Cell& cell = cells_[tail_.load(std::memory_order_relaxed) % kCapacity];
    return cell.is_written.load(std::memory_order_acquire) ? &cell.end : nullptr;
  }

  void pop() {
    cells_[tail_.load(std::memory_order_relaxed) % kCapacity].is_written.store(
        false, std::memory_order_relaxed);
    tail_.fetch_add(1, std::memory_order_release);
  }

  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  struct Cell {
    std::atomic<bool> is_written{false};
    RemoteEnd end;
  };
  std::atomic<uint64_t> head_{0}, tail_{0}, lost_{0};
  Cell cells_[kCapacity];
};

}  // namespace recfn
