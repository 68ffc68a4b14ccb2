// Open addressing: items by a 64-bit number that they tell.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/range.hpp"

namespace recfn::folding {

// Item: copied freely; as made, an empty place. Key: `key(item)`, and `is_empty(item)`.
template <typename Item, typename Key>
class IdTable {
 public:
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

  // It is not there.
  void insert(const Item& item) {
    if ((items_ + 1) * 2 > places_.size()) grow();
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

  // The room stays.
  void clear_places() {
    std::fill(places_.begin(), places_.end(), Item{});
    items_ = 0;
  }

  void release() { std::vector<Item>().swap(places_), items_ = 0; }

  size_t size() const { return items_; }

  template <typename Visit>
  void each(Visit visit) const {
    for (const Item& item : places_) {
      if (!Key::is_empty(item)) visit(item);
    }
  }

 private:
  void grow() {
    std::vector<Item> larger(std::max<size_t>(16, 2 * places_.size()));
    places_.swap(larger);
    items_ = 0;
    for (const Item& item : larger) {
      if (!Key::is_empty(item)) insert(item);
    }
  }

  size_t home(uint64_t key) const { return scrambled(key) & (places_.size() - 1); }
  size_t after(size_t at) const { return (at + 1) & (places_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (places_.size() - 1); }

  std::vector<Item> places_;  // none, or a power of two
  size_t items_ = 0;
};

}  // namespace recfn::folding
