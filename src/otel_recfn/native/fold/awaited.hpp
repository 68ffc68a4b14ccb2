// What came of ranges that haven't come themselves.
#pragma once
#include <cstdint>

#include "fold/folded_tree.hpp"
#include "fold/id_table.hpp"
#include "fold/pool.hpp"

namespace recfn::folding {

struct Awaited {
  Awaited* next;
  uint64_t event_id;
  FoldedTree folded;
  uint64_t order;
  bool stays;  // for its self time, when its unit's next part begins
};

class AwaitedTable {
 public:
  bool empty() const { return table_.size() == 0; }
  size_t size() const { return table_.size(); }

  Awaited* find(uint64_t event_id) {
    const Entry* found = entry(event_id);
    return found == nullptr ? nullptr : found->awaited;
  }

  void insert(Awaited* awaited) { table_.insert({awaited->event_id, awaited}); }
  void erase(uint64_t event_id) { table_.erase(entry(event_id)); }
  void clear_places() { table_.clear_places(); }

  template <typename Visit>
  void each(Visit visit) const {
    table_.each([&](const Entry& one) { visit(one.awaited); });
  }

 private:
  struct Entry {
    uint64_t event_id = 0;
    Awaited* awaited = nullptr;
  };
  struct EntryKey {
    static uint64_t key(const Entry& one) { return one.event_id; }
    static bool is_empty(const Entry& one) { return one.awaited == nullptr; }
  };

  Entry* entry(uint64_t event_id) {
    return table_.find(event_id, [event_id](const Entry& one) { return one.event_id == event_id; });
  }

  IdTable<Entry, EntryKey> table_;
};

}  // namespace recfn::folding
