// Which range or span a begin lies in: that which began last in the task that runs in the thread.
//
//     the thread's stack (ThreadBuffer::stack)      the task's chain (tasks/task_chain.hpp)
//
//     depth --------->  aten::add      began since    newest -> range "load"   in any thread
//                       aten::linear   the refresh                |
//     since_refresh ->  "forward"      of this task             span           attached
//                       "load"         and of others              |
//                       "epoch"                               range "epoch"
//     floor --------->  what belongs to an earlier recording
//
// 1. An entry above `since_refresh` began since the last refresh, in the same task. If the top
//    one is above it and can't run Python, it is the parent, and nothing is asked. Most operators
//    end here.
// 2. Else Python may have run since: it can open spans, and switch to another task or greenlet. The
//    version of the thread's context is compared. If it is the same, and nobody has said that the
//    context is stale, the last answer still holds. When a range ends, the contexts are stale of
//    the threads whose last refresh found it, and of the thread that it began in, if another one
//    ends it.
// 3. Else the context is refreshed, once, with the GIL. The newest entry of the task's chain that
//    isn't over is compared with the newest of PyTorch's ranges on the stack that began in a
//    context that is entered now. Whichever began later is the parent.
//
// The drain replays the stack, so most begins are written without a parent. Where something else is
// the parent, records before the begin say so:
//
//   where a range begins               what is found, and by what          what is recorded
//   ---------------------------------  ----------------------------------  ------------------------
//   in a range of its own thread       the stack's top (1)                 the begin alone
//   there, when another thread has     the chain's newest entry that       as for whatever is found
//   ended that range                   isn't over (3): the stack has the
//                                      range until a drain
//   in a task inside the range that    the chain's newest range, which is  the begin alone, if
//   launched it (nested task)          on this stack                       innermost (kByStack)
//   in a task while a range of a       the same: what the sibling began    Parent, with the range's
//   sibling task is open               is not in the chain                 ordinal (kByOrdinal)
//   in a greenlet                      the same: each has its own context  the same
//   in a task whose range began in     the chain's newest range, which is  kBaseBegin and a Context
//   another thread                     not on this stack                   with its id, `enclosing`
//   there, when that range is over     the chain's newest entry that       as for whatever is found
//                                      isn't over (3): a range further
//                                      out, a span, or nothing
//   in a task, or a callback of a      the same: a context that is copied  the same
//   loop, that outlives its launcher   keeps spans, but no range that ends
//   beside a generator that has a      the chain's newest range, the       as in its own thread
//   range open                         generator's: it has no context
//   in a span that was attached        the chain's newest entry, a span,   kBaseBegin and a Context
//   inside a range                     and the range that it began in      with the span's ids, the
//                                                                          range as `enclosing`,
//                                                                          and no `root`
//   as an operator in a range of       the stack's top, unless a refresh   as for whatever is found
//   PyTorch's that runs Python         finds something later (2, 3)
//   in a thread that PyTorch launched  what PyTorch's thread-local state   kBaseBegin and Context,
//                                      propagates; needs no GIL            of the range or the span
//   there, when that range is over     the same: how long work waits in a  the same
//                                      queue doesn't decide
//   where the program has attached     the chain's newest entry, a span:   kBaseBegin and a Context
//   the span of a range, which may be  as for OpenTelemetry, one that      with that range as
//   over (a callback of a future)      has ended is current all the same   `enclosing`, and its
//   as the first range in a forked     the span: ranges of its parent      kBaseBegin and a Context
//   child                              are of an earlier recording         with the span's ids
//   after a frame of TorchScript's     what lies below the frame, which    as for whatever is found
//   that has moved to another thread   encloses nothing any more
//
// An asynchronous range encloses what begins in tasks that have entered it, nothing on the stack.
// Python calls that were open as their thread was met enclose what begins in the same context.
//
// The range around a span is looked for at the refresh that finds the span: the newest one of the
// task's chain below it, or of PyTorch's on the stack, that isn't over; else the innermost call
// that was open as the thread was met. Spans of ranges in the span are its children. All that knows
// ranges alone has the range around the span as their parent.
//
// Tests: tests/contract/test_parents.py has one for each row but those that need torch or a process
// and are in tests/integration: test_spans_inside_ranges.py (a span inside a range),
// test_work_for_other_threads.py (what PyTorch launches, callbacks), test_frames_that_move.py and
// test_forks.py. Against a model: tests/contract/test_tasks.py and test_interleavings.py.
#pragma once
#include <cstdint>

#include "core/thread_buffer.hpp"

namespace recfn {

// Whether the context may be read (a refresh), which may wait for the GIL. A caller that must not
// wait uses the result of the last refresh.
enum MayRefresh : bool { kMayNotRefresh = false, kMayRefresh = true };

// What begins: a frame of TorchScript's (a function or a fork, which has an interpreter of its
// own), or anything else.
enum Begins : bool { kNoFrame = false, kFrame = true };

// Whether the entry encloses what begins later on the stack: it has an ordinal, and isn't
// asynchronous. Each begin asks, so one comparison answers both: shifted by 3, the word has the
// asynchronous bit as its sign, and is positive if anything else is set. The bits between that and
// the ordinal are set only for entries with an ordinal.
inline bool encloses_on_stack(const OpenEntry& entry) {
  static_assert(OpenEntry::kAsyncBit == uint64_t{1} << 60, "the bit above the ordinal");
  return static_cast<int64_t>(entry.word << 3) > 0;
}

// Whether an entry is a traced Python call. The keys of PyTorch's ranges are their handles, and all
// other ranges of Python's are entered by a task.
inline bool is_python_call(const ThreadBuffer& buffer, const OpenEntry& open) {
  return !open.is_entered() && open.key == make_event_id(buffer.number, open.ordinal());
}

// Whether the current task is in the context of that id. A range without one began before Python
// knew the thread, so every task that runs there is in it.
inline bool is_in(const TaskView& view, uint64_t task) {
  if (task == 0) return true;
  const uint64_t* const end = view.tasks + view.task_count;
  return std::find(view.tasks, end, task) != end;
}

constexpr uint32_t kNotOnStack = UINT32_MAX;

// Identifies a context by its innermost range or span; 0 if there is neither.
inline uint64_t enclosing_id(const Context& context) {
  return context.root != 0 ? context.enclosing : context.span_id;
}

// The index after the last call that was open already when the recorder met the thread. Such calls
// began before all other open ranges, so they are the lowest entries.
inline uint32_t earlier_calls_end(const ThreadBuffer& buffer) {
  uint32_t index = buffer.open.floor;
  while (index < buffer.open.depth && buffer.stack[index].began_earlier()) ++index;
  return index;
}

// The index of the innermost of these calls, if the context is the one in which the thread was met.
// In another context it is no parent: that may have begun inside the call, or the call inside it.
inline uint32_t earlier_call_index(const ThreadBuffer& buffer, const Context& current) {
  const uint32_t end = earlier_calls_end(buffer);
  const bool has_calls = end != buffer.open.floor;
  return has_calls && buffer.stack[end - 1].task == enclosing_id(current) ? end - 1 : kNotOnStack;
}

// The event id of the innermost of these calls, if its ordinal is not above that one; else 0.
inline uint64_t earlier_enclosing_call(const ThreadBuffer& buffer, uint64_t ordinal) {
  const uint32_t end = earlier_calls_end(buffer);
  if (end == buffer.open.floor) return 0;
  const uint64_t call = buffer.stack[end - 1].ordinal();
  return call <= ordinal ? make_event_id(buffer.number, call) : 0;
}

// The index of the innermost range of PyTorch's that began in one of the contexts that are entered
// now.
inline uint32_t torch_range_index(const ThreadBuffer& buffer, const TaskView& view) {
  for (uint32_t index = buffer.open.depth; index-- > buffer.open.floor;) {
    const OpenEntry& entry = buffer.stack[index];
    const bool is_torchs =
        encloses_on_stack(entry) && !entry.is_entered() && !entry.began_earlier();
    if (is_torchs && is_in(view, entry.task)) return index;
  }
  return kNotOnStack;
}

inline uint32_t python_range_index(const ThreadBuffer& buffer, uint64_t event_id) {
  for (uint32_t index = buffer.open.depth; index-- > buffer.open.floor;) {
    const OpenEntry& entry = buffer.stack[index];
    if (entry.is_entered() && entry.key == event_id && encloses_on_stack(entry)) return index;
  }
  return kNotOnStack;
}

// Whether a range of PyTorch's on the stack began after the task's newest entry, which began in
// that thread after so many begins (`ordinal`).
inline bool began_after(const ThreadBuffer& buffer, const TaskView& view, const OpenEntry& entry,
                        uint64_t thread, uint64_t ordinal) {
  return thread == buffer.number ? entry.ordinal() > ordinal : entry.task == view.tasks[0];
}

// The index of the task's latest range; kNotOnStack if it isn't on this stack, or if a span became
// current later.
inline uint32_t latest_index(const ThreadBuffer& buffer, const TaskView& view) {
  const uint32_t torch = torch_range_index(buffer, view);
  const bool is_latest = torch != kNotOnStack &&
                         (!view.has_latest || began_after(buffer, view, buffer.stack[torch],
                                                          view.since_thread, view.since_ordinal));
  if (is_latest) return torch;
  return view.range != 0 ? python_range_index(buffer, view.range) : kNotOnStack;
}

// Whether the drain, too, finds that entry innermost when it replays the stack. For the drain a
// frame that has moved is open until its end comes, and calls that were open when the thread was
// met began then.
inline bool is_innermost_on_stack(const ThreadBuffer& buffer, uint32_t innermost) {
  if (buffer.stack[buffer.open.floor].ordinal() > buffer.stack[innermost].ordinal()) return false;
  for (uint32_t index = buffer.open.depth; index-- > innermost + 1;) {
    const OpenEntry& entry = buffer.stack[index];
    if (encloses_on_stack(entry) || entry.has_moved()) return false;
  }
  return true;
}

inline void remove_entry(ThreadBuffer& buffer, uint32_t index) {
  OpenEntry* const removed = &buffer.stack[index];
  std::memmove(removed, removed + 1, (buffer.open.depth - index - 1) * sizeof(OpenEntry));
  --buffer.open.depth;
  if (index < buffer.open.floor) --buffer.open.floor;
  if (index < buffer.open.since_refresh) {
    --buffer.open.since_refresh;
    // The last refresh may have found it as the parent.
    buffer.refresh.stale |= kContextStale;
  }
}

// Removes all traced Python calls, which another thread has ended. For the drain each is open until
// its end is reported.
inline void forget_ended_calls(ThreadBuffer& buffer) {
  for (uint32_t index = buffer.open.depth; index-- > 0;) {
    if (!is_python_call(buffer, buffer.stack[index])) continue;
    if (index >= buffer.open.floor) --buffer.open.recorded;
    remove_entry(buffer, index);
  }
}

// Notes that the next begin lies in that context, and in no range of the thread's stack.
inline void set_context_parent(Globals& globals, ThreadBuffer& buffer, const Context& context) {
  const bool sampled_alone = globals.sampled_alone.load(std::memory_order_relaxed) != 0;
  buffer.refresh.parent = kByContext;
  set_disabled(buffer, kUnsampled, sampled_alone && gets_no_spans(context));
  // The ring's last Context record says it still.
  if (buffer.preceding.context == context) return;
  buffer.preceding.context = context;
  buffer.preceding.context_since = buffer.ordinal.load(std::memory_order_relaxed);
  buffer.recording.unsent |= kContextUnsent;
}

[[gnu::noinline]] inline void refresh_context(Globals& globals, ThreadBuffer& buffer,
                                              uint64_t version) {
  // Both before the context is read: reading it may run Python, and other threads may say that it
  // is stale. What changes meanwhile makes the next begin refresh again.
  if ((buffer.refresh.stale.exchange(0) & kCallsEnded) != 0) forget_ended_calls(buffer);
  buffer.refresh.version = version;
  TaskView view;
  if (const auto read = recorder_hooks(globals).read_context) read(buffer, view);
  buffer.refresh.task = view.tasks[0];
  buffer.open.since_refresh = buffer.open.depth;
  const Context& found = view.range != 0 ? view.range_context : view.current;
  uint32_t parent = latest_index(buffer, view);
  if (parent == kNotOnStack) parent = earlier_call_index(buffer, found);
  if (parent == kNotOnStack) return set_context_parent(globals, buffer, found);
  if (!buffer.stack[parent].is_entered()) buffer.context_below_torch = view.current;
  buffer.refresh.parent_ordinal = buffer.stack[parent].ordinal();
  buffer.refresh.parent = is_innermost_on_stack(buffer, parent) ? kByStack : kByOrdinal;
  set_disabled(buffer, kUnsampled, false);
}

inline void refresh_context_if_changed(Globals& globals, ThreadBuffer& buffer) {
  const auto version_of = globals.context_version.load(std::memory_order_relaxed);
  const uint64_t version = version_of != nullptr ? version_of(buffer) : 0;
  const bool is_stale = buffer.refresh.stale.load(std::memory_order_relaxed) != 0;
  const bool changed = is_stale || version != buffer.refresh.version ||
                       buffer.open.depth < buffer.open.since_refresh;
  if (__builtin_expect(changed, 0)) refresh_context(globals, buffer, version);
}

// Whether the thread works for another one, as its last refresh found.
inline bool works_for_another(const ThreadBuffer& buffer) {
  return (buffer.refresh.task & kPropagatedTask) != 0;
}

// A TorchScript function that waits for a running torch.jit.fork goes on in the thread that ends
// the fork, and its frames end there. The thread that it began in has them on its stack until the
// drain says so, and may long be somewhere else. So where programs do that, a frame is a parent
// only while TorchScript's interpreter runs in the thread.
[[gnu::noinline]] inline void note_moved_frames(Globals& globals, ThreadBuffer& buffer,
                                                Begins begins) {
  const uint32_t floor = buffer.open.floor;
  uint32_t top = buffer.open.depth;
  while (top > floor && !encloses_on_stack(buffer.stack[top - 1])) --top;
  if (top == floor || !buffer.stack[top - 1].is_frame()) return;
  const auto frames = observer_hooks(globals).torchscript_frames;
  // The interpreter has the frame that begins already.
  const uint64_t own = begins == kFrame ? 1 : 0;
  if (frames != nullptr && frames() > own) return;
  for (uint32_t index = floor; index < top; ++index) {
    OpenEntry& entry = buffer.stack[index];
    if (entry.is_frame()) entry.word |= OpenEntry::kAsyncBit | OpenEntry::kMovedBit;
  }
  buffer.refresh.stale |= kContextStale;
}

// Finds the parent if Python may have run since the innermost range began, or if that has moved to
// another thread.
inline uint32_t parent_of_begin_below_python(Globals& globals, ThreadBuffer& buffer,
                                             MayRefresh may_refresh, Begins begins) {
  if (may_refresh == kMayRefresh) {
    if (__builtin_expect(globals.frames_move.load(std::memory_order_relaxed), 0)) {
      note_moved_frames(globals, buffer, begins);
    }
    refresh_context_if_changed(globals, buffer);
    if (begins == kFrame && works_for_another(buffer)) {
      globals.frames_move.store(true, std::memory_order_relaxed);
    }
  }
  for (uint32_t index = buffer.open.depth; index-- > buffer.open.since_refresh;) {
    if (encloses_on_stack(buffer.stack[index])) return 0;
  }
  if (buffer.refresh.parent == kByOrdinal) {
    buffer.preceding.parent_ordinal = buffer.refresh.parent_ordinal;
    buffer.recording.unsent |= kParentUnsent;
  }
  return buffer.refresh.parent == kByContext ? kBaseBegin : 0;
}

// Finds the parent of the range that begins now. This is the entry point of this file. Returns
// kBaseBegin if the parent is the thread's context, else 0, and notes in `unsent` which records
// have to precede the begin.
[[gnu::always_inline]] inline uint32_t parent_of_begin(Globals& globals, ThreadBuffer& buffer,
                                                       MayRefresh may_refresh, Begins begins) {
  if (__builtin_expect(buffer.open.depth > buffer.open.since_refresh, 1)) {
    const OpenEntry& top = buffer.stack[buffer.open.depth - 1];
    if (__builtin_expect(!top.runs_python() && encloses_on_stack(top), 1)) return 0;
  }
  return parent_of_begin_below_python(globals, buffer, may_refresh, begins);
}

}  // namespace recfn
