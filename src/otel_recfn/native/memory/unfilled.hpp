// Memory that is all written by whoever asks for it: it is not filled with zeros before. Large blocks of it are used again.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "memory/kept_blocks.hpp"

namespace recfn {

template <typename T>
struct Unfilled : std::allocator<T> {
  template <typename Other>
  struct rebind {
    using other = Unfilled<Other>;
  };

  T* allocate(size_t items) {
    if (!is_large(items)) return std::allocator<T>::allocate(items);
    return static_cast<T*>(take_block(items * sizeof(T)));
  }
  void deallocate(T* first, size_t items) noexcept {
    if (!is_large(items)) return std::allocator<T>::deallocate(first, items);
    give_back_block(first, items * sizeof(T));
  }

  template <typename Item>
  void construct(Item* place) noexcept {
    new (static_cast<void*>(place)) Item;
  }
  template <typename Item, typename... Arguments>
  void construct(Item* place, Arguments&&... arguments) {
    new (static_cast<void*>(place)) Item(std::forward<Arguments>(arguments)...);
  }

 private:
  static bool is_large(size_t items) { return items > kLargeBlock / sizeof(T); }
};

// What it is resized by, and what `emplace_back()` gives, is to be filled where it stays: an item that is made elsewhere and
// copied is slow to read just after it was written in parts.
template <typename T>
using UnfilledVector = std::vector<T, Unfilled<T>>;

}  // namespace recfn
