// Objects that are taken and given back, in chunks that stay where they are. T has a member `next`, and whoever takes one fills it.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace recfn::stage {

template <typename T>
class Pool {
 public:
  static constexpr size_t kChunk = 64;
  static constexpr size_t kKeptChunks = 128;

  T* take() {
    if (free_ == nullptr) return never_taken();
    T* item = free_;
    free_ = item->next;
    return item;
  }

  void give_back(T* item) {
    item->next = free_;
    free_ = item;
  }

  // None is in use: what many units at once had needed is freed. Whether it was much.
  bool shrink() {
    const bool much = chunks_.size() > kKeptChunks;
    if (much) chunks_.clear(), free_ = nullptr, taken_once_ = 0;
    return much;
  }

 private:
  void grow() {
    std::unique_ptr<T[]> chunk(new T[kChunk]);  // not cleared, as make_unique does
    chunks_.push_back(std::move(chunk));
  }

  T* never_taken() {
    if (taken_once_ == chunks_.size() * kChunk) grow();
    const size_t at = taken_once_++;
    return &chunks_[at / kChunk][at % kChunk];
  }

  std::vector<std::unique_ptr<T[]>> chunks_;
  T* free_ = nullptr;  // those that were given back
  size_t taken_once_ = 0;
};

}  // namespace recfn::stage
