// Outermost ranges that were announced and have not come yet.
#pragma once
#include <cstddef>
#include <cstdint>

#include "model/events.hpp"
#include "stage/id_table.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

class OpenOutermost {
 public:
  // But for the program's steps.
  void note(const AnnouncedRows& announced) {
    for (Py_ssize_t at = 0; at < announced.size(); ++at) {
      const uint64_t event_id = announced.event_id[at];
      if (announced.source[at] == kStepSource || event_id == 0 || open_.find(event_id) != nullptr) continue;
      open_.insert({event_id, false});
    }
  }

  // Whether it is open. Spans below it were handed on: it has to be a span when it comes.
  bool owe(uint64_t event_id) {
    OfId<bool>* const found = open_.find(event_id);
    if (found == nullptr) return false;
    owed_ += found->value ? 0 : 1;
    return found->value = true;
  }

  bool is_owed(uint64_t event_id) {
    if (owed_ == 0) return false;
    const OfId<bool>* const found = open_.find(event_id);
    return found != nullptr && found->value;
  }

  // Those that have come.
  void forget(const BatchRows& rows) {
    for (Py_ssize_t row = 0; row < rows.size() && open_.size() != 0; ++row) {
      OfId<bool>* const found = rows.is_outermost(row) ? open_.find(rows.event_id[row]) : nullptr;
      if (found == nullptr) continue;
      owed_ -= found->value ? 1 : 0;
      open_.erase(found);
    }
  }

 private:
  IdTable<OfId<bool>> open_;  // true for those that are owed
  size_t owed_ = 0;
};

}  // namespace recfn::stage
