// The ranges that are open: what each lies in, and the row it becomes when it is closed, in its own
// thread or from another one.
//
//   how a range ends                        its row                  what is open inside it
//   --------------------------------------  -----------------------  --------------------------
//   as the innermost one of its thread      ends then                nothing
//   while others are open inside it         ends then, kCrossing     stays in it
//   the same, where it or they are calls    ends as the first of     becomes its sibling
//   in Python (let_out)                     them began
//   by another thread                       ends then, with that     stays in it; and what begins
//                                           thread as `end_thread`   until its thread is told
//   not at all, and recording ends          ends now, kPartial       ends 1 ns before it
//   not yet, and open ranges are asked for  is a copy, kPartial      the same
#include "drain/drain.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace recfn {
namespace {

constexpr size_t kMaxUnreported = 65'536;  // of remote ends whose threads have no room for them

uint64_t caller_of(const FullRow& row) {
  return row.optional_fields ? row.optional_fields->caller : OptionalFields{}.caller;
}

}  // namespace

Drain::OpenRange* Drain::find_open(Thread& thread, uint64_t event_id) {
  for (auto open = thread.open.rbegin(); open != thread.open.rend(); ++open) {
    if (open->row.event_id == event_id) return &*open;
  }
  return nullptr;
}

// Of the open ranges before `end` the innermost one in which others may lie by their place in the
// thread; null where there is none.
const Drain::OpenRange* Drain::innermost(const Thread& thread, const OpenRange* end) {
  for (const OpenRange* open = end; open != thread.open.data();) {
    --open;
    if ((open->row.flags & kAsync) == 0) return open;
  }
  return nullptr;
}

// Parent of a begin: the range named by its Parent record, otherwise
// the last Context record.
Drain::Parents Drain::recorded_parents(Thread& thread, bool base, uint64_t event_id) {
  const bool is_named = !base && thread.parent_ordinal != 0;
  if (const std::optional<Parents> parents = is_named ? parents_in_named(thread) : std::nullopt) {
    return {parents->parent, parents->root != 0 ? parents->root : event_id, parents->context};
  }
  return {thread.enclosing, thread.root != 0 ? thread.root : event_id, thread.context};
}

// In the range that it names; where another thread has ended that one meanwhile, in what was around
// it.
std::optional<Drain::Parents> Drain::parents_in_named(Thread& thread) {
  std::optional<Parents> parents;
  uint64_t event_id = make_event_id(thread.buffer->number, thread.parent_ordinal);
  for (;; event_id = parents->parent) {
    if (const OpenRange* const open = find_open(thread, event_id)) {
      return Parents{event_id, open->row.root, open->row.context};
    }
    const auto is_named = [event_id](const ClosedRemotely& range) {
      return range.event_id == event_id;
    };
    const auto closed =
        std::find_if(thread.closed_remotely.rbegin(), thread.closed_remotely.rend(), is_named);
    if (closed == thread.closed_remotely.rend()) return parents;
    parents = closed->parents;
  }
}

// Event id of the innermost Python call that is open in the thread; 0: there is none. A call is a
// traced one, or a module's inside one, but not the range around one that decodes.
uint64_t Drain::innermost_call(const Thread& thread) const {
  const auto is_call = [this](const OpenRange& open) {
    if (open.row.source != kModuleSource || caller_of(open.row) == 0) {
      return open.row.source == kPythonCallSource;
    }
    const std::string_view prefix = kCallPrefixes[kModuleSource];
    return names_.text(open.row.name).compare(0, prefix.size(), prefix) == 0;
  };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), is_call);
  return found != thread.open.rend() ? found->row.event_id : 0;
}

// What its end has that is no time.
void Drain::note_end(FullRow& row, uint64_t ticks) const {
  const int64_t node_id = node_ids_.at(ticks);
  if (node_id != -1) row.fill_optional().end_node_id = node_id;
}

void Drain::end_row(Row& row, int64_t end_ns, uint32_t thread, uint32_t end_thread) {
  row.end_ns = std::max(end_ns, row.start_ns);
  row.thread = thread;
  row.end_thread = end_thread;
  // Monotonic until here, so that a wall clock that is set meanwhile changes no duration.
  row.start_ns += row.offset_ns;
  row.end_ns += row.offset_ns;
}

// `flags`: with kCrossing where it crosses others of its thread, which an asynchronous one doesn't.
void Drain::seal(Thread& thread, OpenRange& open, int64_t end_ns, uint32_t flags,
                 uint32_t end_thread) {
  FullRow& range = open.row;
  // torch.compile runs operators with tensors without data to see whether it can compile them.
  // Where one raises, it goes another way, so that it isn't marked as a failure of the program's.
  const bool is_tried = (range.flags & kInCompilation) != 0 && range.source == kTorchSource;
  if (is_tried) flags &= ~uint32_t{kError};
  if (is_tried && range.optional_fields) {
    range.optional_fields->error = 0;
    range.optional_fields->stacktrace = 0;
  }
  const bool has_error = range.optional_fields && range.optional_fields->error != 0;
  range.flags |= flags | (has_error ? uint32_t{kError} : 0u);
  if ((range.flags & kAsync) != 0) range.flags &= ~uint32_t{kCrossing};
  end_row(range, end_ns, thread.index, end_thread);
  out_.rows.add(range);
  if (open.is_outermost) thread.steps.end(range.event_id, open.step_context, range.end_ns);
  thread.open_calls -= range.source == kPythonCallSource;
  if (&open == &thread.open.back()) return thread.open.pop_back();
  thread.open.erase(thread.open.begin() + (&open - thread.open.data()));
}

// A range begins in one call (`__enter__`) and ends in another (`__exit__`), which both return
// while it or they are open. To keep ranges nested, the outer range ends when the inner one began,
// and the inner one becomes its sibling. Returns that moment; nothing where no call is concerned,
// or where what ends lies in nothing but a span: what began in it then stays in it.
std::optional<int64_t> Drain::let_out(Thread& thread, const OpenRange& open) {
  const FullRow& ended = open.row;
  const auto inner = thread.open.begin() + (&open - thread.open.data()) + 1;
  if (ended.root == ended.event_id || (ended.flags & kAsync) != 0) return std::nullopt;
  const auto is_call_or_async = [](const OpenRange& one) {
    return one.row.source == kPythonCallSource || (one.row.flags & kAsync) != 0;
  };
  if (ended.source != kPythonCallSource &&
      !std::all_of(inner, thread.open.end(), is_call_or_async)) {
    return std::nullopt;
  }
  std::optional<int64_t> first_ns;
  for (auto one = inner; one != thread.open.end(); ++one) {
    if (one->row.parent != ended.event_id || (one->row.flags & kAsync) != 0) continue;
    if (!first_ns) first_ns = one->row.start_ns;
    one->row.parent = ended.parent;
    one->row.flags |= ended.flags & kParentElsewhere;
    if (caller_of(one->row) == ended.event_id) one->row.fill_optional().caller = caller_of(ended);
  }
  return first_ns;
}

void Drain::collect_remote_ends() {
  while (const RemoteEnd* end = globals().remote_ends.front()) {
    remote_.try_emplace(end->key, *end);  // of several ends of one range the first counts
    if (unreported_.size() < kMaxUnreported) unreported_.push_back(*end);
    globals().remote_ends.pop();
  }
}

void Drain::close_remotely_ended(Thread& thread, uint64_t until_ticks) {
  for (size_t index = thread.open.size(); index-- > 0;) {
    OpenRange& open = thread.open[index];
    const auto found = remote_.find(open.key);
    if (found == remote_.end() || found->second.ticks > until_ticks) continue;
    const RemoteEnd& end = found->second;
    if (end.error_size != 0) {
      open.row.fill_optional().error = names_.intern({end.error, end.error_size});
    }
    note_end(open.row, end.ticks);
    const uint32_t end_thread = thread_index(end.thread_number, thread.index);
    // Its thread may begin ranges in it until it is told.
    std::vector<ClosedRemotely>& live = thread.closed_remotely;
    if (live.size() == EndedByOthers::kCapacity) live.erase(live.begin());
    const uint64_t root = open.row.root != open.row.event_id ? open.row.root : 0;
    live.push_back({open.row.event_id, {open.row.parent, root, open.row.context}});
    seal(thread, open, clock_->monotonic_ns(end.ticks),
         (end.flags & (kEventFlags | kExposed)) | kCrossing, end_thread);
    remote_.erase(found);
  }
}

// The thread that began a range which another one ended still has it on its stack of open ranges.
void Drain::report_remote_ends() {
  const auto began = [](const ThreadBuffer& buffer, const RemoteEnd& end, uint64_t thread_id) {
    if (end.begin_thread_id == 0) return buffer.number == end.key >> kOrdinalBits;
    return buffer.identity.thread_id.load() == thread_id;
  };
  const auto is_reported = [&](const RemoteEnd& end) {
    const uint64_t thread_id = registry().logical_id_of(end.begin_thread_id);
    for (Thread& thread : threads_) {
      if (!began(*thread.buffer, end, thread_id)) continue;
      return thread.buffer->ended_by_others.push(end.key);
    }
    return true;  // the thread is gone
  };
  unreported_.erase(std::remove_if(unreported_.begin(), unreported_.end(), is_reported),
                    unreported_.end());
}

// Each a nanosecond before the one around it: of two that end at once, readers of their times may
// take the inner one for the outer one.
void Drain::close_all_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    while (!thread.open.empty()) {
      const auto enclosing_range = static_cast<int64_t>(thread.open.size()) - 1;
      seal(thread, thread.open.back(), now_ns - enclosing_range, kPartial, thread.index);
    }
  }
}

// As if they ended now, innermost first; they stay open.
void Drain::copy_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    if (!thread.open.empty()) list(thread);
    for (size_t enclosing_range = thread.open.size(); enclosing_range-- > 0;) {
      FullRow row = thread.open[enclosing_range].row;
      row.flags |= kPartial;
      end_row(row, now_ns - static_cast<int64_t>(enclosing_range), thread.index, thread.index);
      out_.rows.add(row);
    }
  }
}

}  // namespace recfn
