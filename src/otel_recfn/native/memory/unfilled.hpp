// Memory that is all written by whoever asks for it: it is not filled with zeros before. Large
// blocks of it are used again.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace recfn {

constexpr size_t kLargeBlock = size_t{1} << 14;

// Large blocks of memory, which batches use one after the other. Where the system gets them back in
// between, it clears and maps their pages anew for each batch, and that takes longer than writing
// them. From any thread, and without a lock.
class SpareBlocks {
 public:
  // A block of so many bytes, which are more than kLargeBlock.
  void* take(size_t bytes) {
    const size_t size = size_index(bytes);
    if (size >= kSizes) return ::operator new(bytes);
    void* block = taken(size);
    return block != nullptr ? block : ::operator new(block_bytes(size));
  }

  // `bytes`: as they were asked for.
  void give_back(void* block, size_t bytes) noexcept {
    if (!is_pooled(block, size_index(bytes))) return ::operator delete(block);
    if (!wanted_.load()) free_all();  // they ceased to be wanted meanwhile
  }

  // Whether blocks that are given back are kept: 48 MiB at most, after which all are freed and it
  // begins anew, so that sizes that nobody asks for any more don't stay; and 64 of a size.
  void keep(bool wanted) noexcept {
    wanted_.store(wanted);
    if (!wanted) free_all();
  }

 private:
  static constexpr size_t kMaxBytes = size_t{48} << 20;
  static constexpr size_t kSizes = 10;  // each twice the one before

  static constexpr size_t block_bytes(size_t size) { return (2 * kLargeBlock) << size; }

  // kSizes where it is larger than all of them.
  static size_t size_index(size_t bytes) {
    size_t size = 0;
    while (size < kSizes && block_bytes(size) < bytes) ++size;
    return size;
  }

  void* taken(size_t size) noexcept {
    for (std::atomic<void*>& slot : blocks_[size]) {
      void* block = slot.load() != nullptr ? slot.exchange(nullptr) : nullptr;
      if (block == nullptr) continue;
      bytes_.fetch_sub(block_bytes(size));
      return block;
    }
    return nullptr;
  }

  bool is_pooled(void* block, size_t size) noexcept {
    if (size >= kSizes || !wanted_.load()) return false;
    if (bytes_.fetch_add(block_bytes(size)) + block_bytes(size) > kMaxBytes) free_all();
    for (std::atomic<void*>& slot : blocks_[size]) {
      void* none = nullptr;
      if (bytes_.load() <= kMaxBytes && slot.compare_exchange_strong(none, block)) return true;
    }
    bytes_.fetch_sub(block_bytes(size));
    return false;
  }

  void free_all() noexcept {
    for (size_t size = 0; size < kSizes; ++size) {
      while (void* block = taken(size)) ::operator delete(block);
    }
  }

  std::atomic<bool> wanted_{false};
  std::atomic<size_t> bytes_{0};
  std::array<std::array<std::atomic<void*>, 64>, kSizes> blocks_{};
};

inline SpareBlocks spare_blocks;

template <typename T>
struct Unfilled : std::allocator<T> {
  template <typename Other>
  struct rebind {
    using other = Unfilled<Other>;
  };

  T* allocate(size_t items) {
    if (!is_large(items)) return std::allocator<T>::allocate(items);
    return static_cast<T*>(spare_blocks.take(items * sizeof(T)));
  }
  void deallocate(T* first, size_t items) noexcept {
    if (!is_large(items)) return std::allocator<T>::deallocate(first, items);
    spare_blocks.give_back(first, items * sizeof(T));
  }

  template <typename Item>
  void construct(Item* slot) noexcept {
    new (static_cast<void*>(slot)) Item;
  }
  template <typename Item, typename... Arguments>
  void construct(Item* slot, Arguments&&... arguments) {
    new (static_cast<void*>(slot)) Item(std::forward<Arguments>(arguments)...);
  }

 private:
  static bool is_large(size_t items) { return items > kLargeBlock / sizeof(T); }
};

// What it is resized by, and what `emplace_back()` gives, is to be filled where it stays: an item
// that is made elsewhere and copied is slow to read just after it was written in parts.
template <typename T>
using UnfilledVector = std::vector<T, Unfilled<T>>;

}  // namespace recfn
