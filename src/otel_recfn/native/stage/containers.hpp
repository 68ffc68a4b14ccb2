// What a stage is made of: a pool of objects, and a hash table of items by a number of 64 bits.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "model/numbers.hpp"

namespace recfn::stage {

inline uint64_t scrambled(uint64_t number) {
  number *= kOddNumber;
  return number ^ number >> 32;
}

// Objects that are taken and given back, in chunks that stay where they are. T has a member `next`, and whoever takes one fills it.
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

  // To be called when no object is in use: frees what many units at once had needed. Whether it was much.
  bool shrink() {
    const bool much = chunks_.size() > kKeptChunks;
    if (much) chunks_.clear(), free_ = nullptr, taken_once_ = 0;
    return much;
  }

 private:
  T* never_taken() {
    if (taken_once_ == chunks_.size() * kChunk) chunks_.emplace_back(new T[kChunk]);  // not cleared, as make_unique does
    const size_t at = taken_once_++;
    return &chunks_[at / kChunk][at % kChunk];
  }

  std::vector<std::unique_ptr<T[]>> chunks_;
  T* free_ = nullptr;  // those that were given back
  size_t taken_once_ = 0;
};

// Open addressing. An item is copied freely; has `key()` and, as made, `is_empty()`.
template <typename Item>
class IdTable {
 public:
  // The item with that key, or null.
  Item* find(uint64_t key) {
    return find(key, [key](const Item& item) { return item.key() == key; });
  }

  // `matches` tells it from others of the same key.
  template <typename Matches>
  Item* find(uint64_t key, Matches matches) {
    if (items_ == 0) return nullptr;
    for (size_t at = home(key);; at = after(at)) {
      Item& item = places_[at];
      if (item.is_empty()) return nullptr;
      if (matches(item)) return &item;
    }
  }

  // An item whose key isn't in the table.
  void insert(const Item& item) {
    if ((items_ + 1) * 2 > places_.size()) grow();
    size_t at = home(item.key());
    while (!places_[at].is_empty()) at = after(at);
    places_[at] = item, ++items_;
  }

  // What stands behind it moves up, so that it is still found.
  void erase(Item* item) {
    size_t hole = static_cast<size_t>(item - places_.data());
    for (size_t at = after(hole); !places_[at].is_empty(); at = after(at)) {
      if (distance(home(places_[at].key()), at) < distance(hole, at)) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = Item{}, --items_;
  }

  // Removes all items, and keeps the memory for others.
  void clear_places() {
    std::fill(places_.begin(), places_.end(), Item{});
    items_ = 0;
  }

  void release() { std::vector<Item>().swap(places_), items_ = 0; }

  size_t size() const { return items_; }

 private:
  void grow() {
    std::vector<Item> larger(std::max<size_t>(16, 2 * places_.size()));
    places_.swap(larger);
    items_ = 0;
    for (const Item& item : larger) {
      if (!item.is_empty()) insert(item);
    }
  }

  size_t home(uint64_t key) const { return scrambled(key) & (places_.size() - 1); }
  size_t after(size_t at) const { return (at + 1) & (places_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (places_.size() - 1); }

  std::vector<Item> places_;  // none, or a power of two
  size_t items_ = 0;
};

}  // namespace recfn::stage
