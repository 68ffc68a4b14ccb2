// The ranges of a unit that it has to know: those that are kept, and those that something lies in and that haven't come.
#pragma once
#include <cstdint>

#include "fold/folded_tree.hpp"
#include "fold/id_table.hpp"
#include "fold/pool.hpp"
#include "fold/range.hpp"

namespace recfn::folding {

// A range that is a span, and what was folded into it.
struct Kept {
  Range range;
  uint64_t parent;  // a range that had not come when this one did, or 0
  Rank rank;
  int64_t self_ns;
  FoldedTree folded;
  uint64_t order;
};

// What came of a range that hasn't come itself.
struct Awaited {
  FoldedTree folded;
  Rank highest;  // of what is kept in it
  int64_t children_ns = 0;
  uint64_t order = 0;
  bool stays = false;  // for its self time, when its unit's next part begins
};

// What says nothing is not filled. Both at once where a range names itself as its parent.
struct Known {
  Known* next;
  uint64_t event_id;
  bool is_kept, is_awaited;
  Kept kept;
  Awaited awaited;
};

class KnownTable {
 public:
  void reserve(size_t more) { table_.reserve(more); }

  Known* find(uint64_t event_id) {
    const Entry* found = entry(event_id);
    return found == nullptr ? nullptr : found->known;
  }

  void insert(Known* known) { table_.insert({known->event_id, known}); }
  void erase(uint64_t event_id) { table_.erase(entry(event_id)); }
  void clear() { table_.clear(); }
  void clear_places() { table_.clear_places(); }
  void swap(KnownTable& other) { table_.swap(other.table_); }

  template <typename Visit>
  void each(Visit visit) const {
    table_.each([&](const Entry& one) { visit(one.known); });
  }

 private:
  struct Entry {
    uint64_t event_id = 0;
    Known* known = nullptr;
  };
  struct EntryKey {
    static uint64_t key(const Entry& one) { return one.event_id; }
    static bool is_empty(const Entry& one) { return one.known == nullptr; }
  };

  Entry* entry(uint64_t event_id) {
    return table_.find(event_id, [event_id](const Entry& one) { return one.event_id == event_id; });
  }

  IdTable<Entry, EntryKey> table_;
};

}  // namespace recfn::folding
