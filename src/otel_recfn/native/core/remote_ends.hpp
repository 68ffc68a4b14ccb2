// Ends of ranges that began on another thread: a bounded queue, many producers, the drain its one consumer.
//
// Rare (asynchronous ranges only), so it is shared by all threads; still no lock and no allocation. Each cell carries the
// turn it is in: 2n while the n-th lap may write it, 2n + 1 while the drain may read what that lap wrote.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/record.hpp"
#include "core/utf8.hpp"

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
    for (;;) {
      Cell& cell = cells_[at % kCapacity];
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == 2 * (at / kCapacity)) {
        if (head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) break;
      } else if (turn < 2 * (at / kCapacity)) {
        lost_.fetch_add(1, std::memory_order_relaxed);
        return;
      } else {
        at = head_.load(std::memory_order_relaxed);
      }
    }
    Cell& cell = cells_[at % kCapacity];
    end.error_size = cut_at_character(error, error_size, sizeof end.error);
    if (end.error_size != 0) std::memcpy(end.error, error, end.error_size);
    cell.end = end;
    cell.turn.store(2 * (at / kCapacity) + 1, std::memory_order_release);
  }

  // The oldest end, until pop(); null when there is none.
  const RemoteEnd* front() const {
    const Cell& cell = cells_[tail_ % kCapacity];
    return cell.turn.load(std::memory_order_acquire) == 2 * (tail_ / kCapacity) + 1 ? &cell.end : nullptr;
  }

  void pop() {
    cells_[tail_ % kCapacity].turn.store(2 * (tail_ / kCapacity) + 2, std::memory_order_release);
    ++tail_;
  }

  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

  // In a forked child, where no other thread is left.
  void reset() {
    for (Cell& cell : cells_) cell.turn.store(0, std::memory_order_relaxed);
    head_.store(0), lost_.store(0), tail_ = 0;
  }

 private:
  struct Cell {
    std::atomic<uint64_t> turn{0};
    RemoteEnd end;
  };
  std::atomic<uint64_t> head_{0}, lost_{0};
  uint64_t tail_ = 0;
  Cell cells_[kCapacity];
};

}  // namespace recfn
