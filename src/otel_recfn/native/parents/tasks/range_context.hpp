// What a Python range, or one of PyTorch's on the stack, says to what begins in it elsewhere: its
// context, its outermost range, and itself as the one around.
//
//   the range lies in                  its context and its outermost range
//   ---------------------------------  --------------------------------------------------------
//   what the last refresh found        are what that found; where it found no range, the range
//   (kBaseBegin)                       is its own outermost one
//   the task's innermost range         are that one's
//   a range of PyTorch's on the stack  are those of the range below that, and so on: down to one
//                                      of Python's, whose entry has them, or to one that began
//                                      in what a refresh found
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/thread_buffer.hpp"
#include "parents/parents.hpp"
#include "parents/tasks/task_entries.hpp"

namespace recfn {

// Index on the stack of what the range at this depth of it lies in, as `parent_of_begin` found it;
// kNotOnStack if there is nothing.
inline uint32_t parent_index(const ThreadBuffer& buffer, uint32_t depth) {
  const bool by_ordinal = buffer.refresh.parent == kByOrdinal;
  const uint32_t lowest =
      by_ordinal ? std::max(buffer.open.since_refresh, buffer.open.floor) : buffer.open.floor;
  uint32_t index = depth;
  while (index-- > lowest) {
    if (encloses_on_stack(buffer.stack[index])) return index;
  }
  for (++index; by_ordinal && index-- > buffer.open.floor;) {
    if (buffer.stack[index].ordinal() == buffer.refresh.parent_ordinal) return index;
  }
  return kNotOnStack;
}

// The entry of an open range that this task, or whoever keeps it by its id, has; null where it has
// none.
inline const TaskEntry* entry_of(uint64_t event_id, const TaskEntry* newest) {
  const TaskEntry* entry = newest;
  while (entry != nullptr && entry->event_id != event_id) entry = entry->outer;
  return entry != nullptr ? entry : open_range(event_id);
}

// What a range of PyTorch's lies in that began in what was current: when something begins in it,
// that is current again. The ring's last Context holds for begins after `context_since`; for those
// before, what was current as a refresh found a range of PyTorch's on the stack.
inline const Context& base_context(const ThreadBuffer& buffer, uint64_t ordinal) {
  const bool has_last = ordinal > buffer.preceding.context_since;
  return has_last ? buffer.preceding.context : buffer.context_below_torch;
}

// What its parent on the stack lies in: a range of Python's says so itself, PyTorch's lie in the
// next one below, if there is one: calls that were around them may have been ended.
inline void set_context_from_stack(TaskEntry& entry, const ThreadBuffer& buffer, uint32_t parent,
                                   const TaskEntry* newest) {
  uint64_t outermost = 0;
  bool is_base = false;
  for (uint32_t index = parent + 1; !is_base && index-- > buffer.open.floor;) {
    const OpenEntry& open = buffer.stack[index];
    if (!encloses_on_stack(open)) continue;
    outermost = make_event_id(buffer.number, open.ordinal());
    if (!is_python_call(buffer, open)) entry.root_without_calls = outermost;
    const TaskEntry* known = open.is_entered() ? entry_of(open.key, newest) : nullptr;
    if (known != nullptr) {
      entry.copy_parent_from(*known);
      return;
    }
    is_base = open.is_base();
  }
  if (outermost == 0) return;
  entry.context = base_context(buffer, outermost & kOrdinalMask);
  entry.root = entry.context.root != 0 ? entry.context.root : outermost;
  if (entry.context.root != 0) entry.root_without_calls = entry.root;
}

// Whether the parent of the thread's newest range is what the last refresh found, and not a range
// on the stack.
inline bool begun_by_context(const ThreadBuffer& buffer) {
  return buffer.stack[buffer.open.depth - 1].is_base();
}

// Of the thread's newest range, which has just begun. `enclosing_entry`: the task's innermost one.
inline void set_context(TaskEntry& entry, const ThreadBuffer& buffer,
                        const TaskEntry* enclosing_entry) {
  entry.context = buffer.preceding.context;
  entry.root = entry.event_id;
  entry.root_without_calls = entry.event_id;
  if (begun_by_context(buffer)) {
    if (buffer.preceding.context.root != 0) {
      entry.root = buffer.preceding.context.root;
      entry.root_without_calls = buffer.preceding.context.root;
    }
  } else if (enclosing_entry != nullptr && is_range(*enclosing_entry)) {
    entry.copy_parent_from(*enclosing_entry);
  } else {
    set_context_from_stack(entry, buffer, parent_index(buffer, buffer.open.depth - 1),
                           enclosing_entry);
  }
  entry.enclose_with_itself();
}

}  // namespace recfn
