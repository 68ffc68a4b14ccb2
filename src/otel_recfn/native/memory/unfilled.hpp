// Memory that is all written by whoever asks for it: it is not filled with zeros before.
#pragma once
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace recfn {

template <typename T>
struct Unfilled : std::allocator<T> {
  template <typename Other>
  struct rebind {
    using other = Unfilled<Other>;
  };

  template <typename Item>
  void construct(Item* place) noexcept {
    new (static_cast<void*>(place)) Item;
  }
  template <typename Item, typename... Arguments>
  void construct(Item* place, Arguments&&... arguments) {
    new (static_cast<void*>(place)) Item(std::forward<Arguments>(arguments)...);
  }
};

// What it is resized by, and what `emplace_back()` gives, is to be filled where it stays: an item that is made elsewhere and
// copied is slow to read just after it was written in parts.
template <typename T>
using UnfilledVector = std::vector<T, Unfilled<T>>;

using UnfilledBytes = UnfilledVector<char>;

}  // namespace recfn
