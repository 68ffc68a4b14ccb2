// Bytes that are all written by whoever asks for them: they are not filled with zeros before.
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

using UnfilledBytes = std::vector<char, Unfilled<char>>;

}  // namespace recfn
