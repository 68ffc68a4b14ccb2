// What a range that begins lies in: what began last, as the task that runs in the thread sees it.
//
// Mostly that is the top of the thread's stack. Only where Python may have run since (it can open
// spans, and switch to another task or greenlet) the thread asks whether its contextvars context
// has changed, and only if it has it looks: it takes the GIL and reads what is current. Entries
// above `look_depth` began after that look, so that they are the task's own.
#pragma once
#include <cstdint>

#include "core/thread_buffer.hpp"

namespace recfn {

// Reading the context ("a look") may wait for the GIL. A caller that must not wait uses the result
// of the last look.
enum MayLook : bool { kMayNotLook = false, kMayLook = true };

// What begins: a function of TorchScript's, or a fork, with an interpreter of its own, or anything
// else.
enum Begins : bool { kNoFrame = false, kFrame = true };

// It has an ordinal, and isn't asynchronous: the ordinal as a number whose sign is that bit is
// positive.
inline bool encloses_by_place(const OpenEntry& entry) {
  static_assert(OpenEntry::kAsyncBit == uint64_t{1} << 60, "the bit above the ordinal");
  return static_cast<int64_t>(entry.word << 3) > 0;
}

// Of an entry of the stack: PyTorch's are found by their handles, and a task enters the other
// ranges of Python's.
inline bool is_python_call(const ThreadBuffer& buffer, const OpenEntry& open) {
  return !open.is_entered() && open.key == make_event_id(buffer.number, open.ordinal());
}

// A range without a task began before Python knew the thread: every task that runs in the thread is
// in it.
inline bool is_in(const TaskView& view, uint64_t task) {
  if (task == 0) return true;
  for (uint64_t at = 0; at < view.task_count; ++at) {
    if (view.tasks[at] == task) return true;
  }
  return false;
}

constexpr uint32_t kNowhere = UINT32_MAX;

// A number for what begins in that context: the range or span that it lies in; 0 where there is
// neither.
inline uint64_t around(const Context& context) {
  return context.enclosing != 0 ? context.enclosing : context.span_id;
}

// Where calls end that were open as the thread was met. They began before all else that is open,
// and so stand below it.
inline uint32_t end_of_earlier_calls(const ThreadBuffer& buffer) {
  uint32_t place = buffer.floor;
  while (place < buffer.depth && buffer.stack[place].began_earlier()) ++place;
  return place;
}

// The innermost of these, where nothing is around but what was as the thread was met: what came and
// went meanwhile may have begun within them, too, so nothing that begins now is in both.
inline uint32_t place_of_earlier_call(const ThreadBuffer& buffer, const Context& current) {
  const uint32_t end = end_of_earlier_calls(buffer);
  return end != buffer.floor && buffer.stack[end - 1].task == around(current) ? end - 1 : kNowhere;
}

// The innermost range of PyTorch's that began in one of the contexts that are entered now.
inline uint32_t innermost_of_torch(const ThreadBuffer& buffer, const TaskView& view) {
  for (uint32_t index = buffer.depth; index-- > buffer.floor;) {
    const OpenEntry& entry = buffer.stack[index];
    const bool is_torchs =
        encloses_by_place(entry) && !entry.is_entered() && !entry.began_earlier();
    if (is_torchs && is_in(view, entry.task)) return index;
  }
  return kNowhere;
}

inline uint32_t place_of_range(const ThreadBuffer& buffer, uint64_t event_id) {
  for (uint32_t index = buffer.depth; index-- > buffer.floor;) {
    const OpenEntry& entry = buffer.stack[index];
    if (entry.is_entered() && entry.key == event_id && encloses_by_place(entry)) return index;
  }
  return kNowhere;
}

// Index on the stack of the task's latest range; kNowhere if it isn't on this stack, or if a span
// became current later.
inline uint32_t place_of_latest(const ThreadBuffer& buffer, const TaskView& view) {
  const uint32_t torch = innermost_of_torch(buffer, view);
  if (torch != kNowhere) {
    const OpenEntry& entry = buffer.stack[torch];
    const bool here = view.since_thread == buffer.number;
    if (!view.has_latest ||
        (here ? entry.ordinal() > view.since_ordinal : entry.task == view.tasks[0]))
      return torch;
  }
  return view.range != 0 ? place_of_range(buffer, view.range) : kNowhere;
}

// As the drain sees it, for which a frame that was left is open until its end comes, and calls that
// were open as the thread was met have begun then.
inline bool is_innermost_by_place(const ThreadBuffer& buffer, uint32_t place) {
  if (buffer.stack[buffer.floor].ordinal() > buffer.stack[place].ordinal()) return false;
  for (uint32_t index = buffer.depth; index-- > place + 1;) {
    if (encloses_by_place(buffer.stack[index]) || buffer.stack[index].was_left()) return false;
  }
  return true;
}

inline void remove_entry(ThreadBuffer& buffer, uint32_t index) {
  std::memmove(&buffer.stack[index], &buffer.stack[index + 1],
               (buffer.depth - index - 1) * sizeof(OpenEntry));
  --buffer.depth;
  if (index < buffer.floor) --buffer.floor;
  if (index < buffer.look_depth) --buffer.look_depth, buffer.context_stale |= kContextStale;
}

// They stay on the stack until the drain tells of their ends, one by one.
inline void forget_ended_calls(ThreadBuffer& buffer) {
  for (uint32_t index = buffer.depth; index-- > 0;) {
    if (!is_python_call(buffer, buffer.stack[index])) continue;
    if (index >= buffer.floor) --buffer.open_recorded;
    remove_entry(buffer, index);
  }
}

[[gnu::noinline]] inline void look(Globals& globals, ThreadBuffer& buffer, uint64_t version) {
  if ((buffer.context_stale.exchange(0) & kCallsEnded) != 0) forget_ended_calls(buffer);
  buffer.context_version = version;
  TaskView view;
  if (const auto read = globals.read_context.load(std::memory_order_relaxed)) read(buffer, view);
  buffer.task = view.tasks[0];
  buffer.look_depth = buffer.depth;
  const Context& found = view.range != 0 ? view.range_context : view.current;
  uint32_t place = place_of_latest(buffer, view);
  if (place == kNowhere) place = place_of_earlier_call(buffer, found);
  if (place != kNowhere) {
    if (!buffer.stack[place].is_entered()) buffer.current_below = view.current;
    buffer.look_ordinal = buffer.stack[place].ordinal();
    buffer.look_parent = is_innermost_by_place(buffer, place) ? kByPlace : kByOrdinal;
    set_rest(buffer, kUnsampled, false);
    return;
  }
  buffer.look_parent = kByContext;
  set_rest(buffer, kUnsampled,
           globals.sampled_alone.load(std::memory_order_relaxed) != 0 && gets_no_spans(found));
  if (buffer.context == found) return;
  buffer.context = found;
  buffer.context_since = buffer.ordinal.load(std::memory_order_relaxed);
  buffer.unsent |= kContextUnsent;
}

inline void look_if_changed(Globals& globals, ThreadBuffer& buffer) {
  const auto version_of = globals.context_version.load(std::memory_order_relaxed);
  const uint64_t version = version_of != nullptr ? version_of(buffer) : 0;
  const bool is_stale = buffer.context_stale.load(std::memory_order_relaxed) != 0;
  const bool changed =
      is_stale || version != buffer.context_version || buffer.depth < buffer.look_depth;
  if (__builtin_expect(changed, 0)) look(globals, buffer, version);
}

// Whether the thread works for another one, as its last look found.
inline bool works_for_another(const ThreadBuffer& buffer) {
  return (buffer.task & kLaunchedTask) != 0;
}

// A TorchScript function that waits for a running torch.jit.fork goes on in the thread that ends
// the fork, and its frames end there. The thread that it began in has them on its stack until the
// drain tells it, and may long be somewhere else. So where programs do that, a frame is a parent
// only while TorchScript's interpreter runs in the thread.
[[gnu::noinline]] inline void leave_moved_frames(Globals& globals, ThreadBuffer& buffer,
                                                 Begins begins) {
  uint32_t top = buffer.depth;
  while (top > buffer.floor && !encloses_by_place(buffer.stack[top - 1])) --top;
  if (top == buffer.floor || !buffer.stack[top - 1].is_frame()) return;
  const auto frames = globals.torchscript_frames.load(std::memory_order_relaxed);
  const uint64_t own =
      begins == kFrame ? 1 : 0;  // the interpreter has the frame that begins already
  if (frames != nullptr && frames() > own) return;
  for (uint32_t index = buffer.floor; index < top; ++index) {
    if (buffer.stack[index].is_frame())
      buffer.stack[index].word |= OpenEntry::kAsyncBit | OpenEntry::kLeftBit;
  }
  buffer.context_stale |= kContextStale;
}

// Python may have run since the innermost range began, or it has moved to another thread.
inline uint32_t find_parent_below_python(Globals& globals, ThreadBuffer& buffer, MayLook may_look,
                                         Begins begins) {
  if (may_look == kMayLook) {
    if (__builtin_expect(globals.frames_move.load(std::memory_order_relaxed), 0))
      leave_moved_frames(globals, buffer, begins);
    look_if_changed(globals, buffer);
    if (begins == kFrame && works_for_another(buffer))
      globals.frames_move.store(true, std::memory_order_relaxed);
  }
  for (uint32_t index = buffer.depth; index-- > buffer.look_depth;) {
    if (encloses_by_place(buffer.stack[index])) return 0;
  }
  if (buffer.look_parent == kByOrdinal) {
    buffer.parent_ordinal = buffer.look_ordinal;
    buffer.unsent |= kParentUnsent;
  }
  return buffer.look_parent == kByContext ? kBaseBegin : 0;
}

// Returns kBaseBegin or 0, and notes in `unsent` which records have to stand before the begin.
[[gnu::always_inline]] inline uint32_t find_parent(Globals& globals, ThreadBuffer& buffer,
                                                   MayLook may_look, Begins begins) {
  if (__builtin_expect(buffer.depth > buffer.look_depth, 1)) {
    const OpenEntry& top = buffer.stack[buffer.depth - 1];
    if (__builtin_expect(!top.runs_python() && encloses_by_place(top), 1)) return 0;
  }
  return find_parent_below_python(globals, buffer, may_look, begins);
}

}  // namespace recfn
