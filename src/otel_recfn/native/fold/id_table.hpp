// Open addressing: items by a 64-bit number that they tell. Room is made beforehand, so that nothing else needs memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fold/range.hpp"

namespace recfn::folding {

// Item: copied freely; as made, an empty place. Key: `key(item)`, and `is_empty(item)`.
template <typename Item, typename Key>
class IdTable {
 public:
  void reserve(size_t more) {
    if ((items_ + more) * 2 <= places_.size()) return;
    size_t size = places_.empty() ? 16 : places_.size();
    while ((items_ + more) * 2 > size) size *= 2;
    std::vector<Item> larger(size);
    places_.swap(larger);
    items_ = 0;
    for (const Item& item : larger) {
      if (!Key::is_empty(item)) insert(item);
    }
  }

  // Null where there is none. `matches` tells it from others of the same key.
  template <typename Matches>
  Item* find(uint64_t key, Matches matches) {
    if (items_ == 0) return nullptr;
    for (size_t at = home(key);; at = after(at)) {
      Item& item = places_[at];
      if (Key::is_empty(item)) return nullptr;
      if (matches(item)) return &item;
    }
  }

  // It is not there, and room is.
  void insert(const Item& item) {
    size_t at = home(Key::key(item));
    while (!Key::is_empty(places_[at])) at = after(at);
    places_[at] = item, ++items_;
  }

  // What stands behind it moves up, so that it is still found.
  void erase(Item* item) {
    size_t hole = static_cast<size_t>(item - places_.data());
    for (size_t at = after(hole); !Key::is_empty(places_[at]); at = after(at)) {
      if (distance(home(Key::key(places_[at])), at) < distance(hole, at)) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = Item{}, --items_;
  }

  // Few items leave no table, so that nobody clears a large one again and again.
  void clear() {
    if (places_.size() > kSparse * items_) {
      release();
    } else {
      clear_places();
    }
  }

  // The room stays.
  void clear_places() {
    std::fill(places_.begin(), places_.end(), Item{});
    items_ = 0;
  }

  void swap(IdTable& other) { places_.swap(other.places_), std::swap(items_, other.items_); }

  void release() { std::vector<Item>().swap(places_), items_ = 0; }

  size_t size() const { return items_; }

  template <typename Visit>
  void each(Visit visit) const {
    for (const Item& item : places_) {
      if (!Key::is_empty(item)) visit(item);
    }
  }

 private:
  static constexpr size_t kSparse = 64;

  size_t home(uint64_t key) const { return scrambled(key) & (places_.size() - 1); }
  size_t after(size_t at) const { return (at + 1) & (places_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (places_.size() - 1); }

  std::vector<Item> places_;  // none, or a power of two
  size_t items_ = 0;
};

}  // namespace recfn::folding
