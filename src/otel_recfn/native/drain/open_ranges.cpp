// The ranges that are open: what each lies in, and the row it becomes when it is closed, in its own
// thread or from another one.
#include "drain/drain.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace recfn {
namespace {

constexpr size_t kMaxUntold = 65'536;

uint64_t caller_of(const FullRow& row) {
  return row.seldom ? row.seldom->caller : SeldomRow{}.caller;
}

}  // namespace

// The innermost open range that what begins next lies in, unless records say what it lies in; null
// where there is none.
const Drain::OpenRange* Drain::range_around(const Thread& thread, bool base) {
  if (base || thread.parent_ordinal != 0) return nullptr;
  for (auto open = thread.open.rbegin(); open != thread.open.rend(); ++open) {
    if ((open->row.flags & kAsync) == 0) return &*open;
  }
  return nullptr;
}

// Where what begins now lies, as records say it: in the range that it names, or else in what the
// last Context record tells.
Drain::Place Drain::told_place(const Thread& thread, bool base, uint64_t event_id) {
  const bool is_named = !base && thread.parent_ordinal != 0;
  if (const std::optional<Place> place = is_named ? place_in_named(thread) : std::nullopt) {
    return {place->parent, place->root != 0 ? place->root : event_id, place->context};
  }
  const uint64_t parent = thread.enclosing;
  return {parent, parent == 0 ? event_id : thread.root != 0 ? thread.root : parent, thread.context};
}

// In the range that it names; where another thread has ended that one meanwhile, in what was around
// it.
std::optional<Drain::Place> Drain::place_in_named(const Thread& thread) {
  std::optional<Place> place;
  for (uint64_t ordinal = thread.parent_ordinal;;) {
    const auto is_named = [ordinal](const auto& range) { return range.ordinal == ordinal; };
    const auto open = std::find_if(thread.open.rbegin(), thread.open.rend(), is_named);
    if (open != thread.open.rend())
      return Place{open->row.event_id, open->row.root, open->row.context};
    const auto closed =
        std::find_if(thread.closed_remotely.rbegin(), thread.closed_remotely.rend(), is_named);
    if (closed == thread.closed_remotely.rend()) return place;
    place = closed->place;
    if (place->parent >> kOrdinalBits != thread.buffer->number) return place;
    ordinal = place->parent & kOrdinalMask;
  }
}

// Event id of the innermost Python call that is open in the thread; 0: there is none. A call is a
// traced one, or a module's inside one, but not the range around one that decodes.
uint64_t Drain::innermost_call(const Thread& thread) const {
  const auto is_call = [this](const OpenRange& open) {
    if (open.row.source != kModuleSource || caller_of(open.row) == 0)
      return open.row.source == kPythonCallSource;
    const std::string_view prefix = kCallPrefixes[kModuleSource];
    return names_.text(open.row.name).compare(0, prefix.size(), prefix) == 0;
  };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), is_call);
  return found != thread.open.rend() ? found->row.event_id : 0;
}

void Drain::end_row(Row& row, int64_t end_ns, uint32_t thread, uint32_t end_thread) {
  row.end_ns = std::max(end_ns, row.start_ns);
  row.thread = thread, row.end_thread = end_thread;
  row.start_ns += row.offset_ns, row.end_ns += row.offset_ns;
}

// `flags`: with kCrossing where it crosses others of its thread, which an asynchronous one doesn't.
void Drain::seal(Thread& thread, OpenRange& open, int64_t end_ns, uint32_t flags,
                 uint32_t end_thread) {
  FullRow& range = open.row;
  range.flags |= flags | (range.seldom && range.seldom->error != 0 ? uint32_t{kError} : 0u);
  if ((range.flags & kAsync) != 0) range.flags &= ~uint32_t{kCrossing};
  end_row(range, end_ns, thread.index, end_thread);
  out_.rows.add(range);
  thread.open_calls -= range.source == kPythonCallSource;
  if (&open == &thread.open.back()) return thread.open.pop_back();
  thread.open.erase(thread.open.begin() + (&open - thread.open.data()));
}

// A range begins in one call (`__enter__`) and ends in another (`__exit__`), which both return
// while it or they are open. So that all nest, what ends first ends where that began which stays
// open in it, and that moves out. Returns that moment; nothing where no call is concerned, or where
// what ends lies in nothing: what began in it then stays in it.
std::optional<int64_t> Drain::let_out(Thread& thread, const OpenRange& open) {
  const FullRow& ended = open.row;
  const auto inner = thread.open.begin() + (&open - thread.open.data()) + 1;
  if (ended.parent == 0 || (ended.flags & kAsync) != 0) return std::nullopt;
  const auto is_call_or_async = [](const OpenRange& one) {
    return one.row.source == kPythonCallSource || (one.row.flags & kAsync) != 0;
  };
  if (ended.source != kPythonCallSource && !std::all_of(inner, thread.open.end(), is_call_or_async))
    return std::nullopt;
  std::optional<int64_t> first_ns;
  for (auto one = inner; one != thread.open.end(); ++one) {
    if (one->row.parent != ended.event_id || (one->row.flags & kAsync) != 0) continue;
    if (!first_ns) first_ns = one->row.start_ns;
    one->row.parent = ended.parent;
    if (caller_of(one->row) == ended.event_id) one->row.fill_seldom().caller = caller_of(ended);
  }
  return first_ns;
}

void Drain::collect_remote_ends() {
  while (const RemoteEnd* end = globals().remote_ends.front()) {
    remote_.try_emplace(end->key, *end);  // of several ends of one range the first counts
    if (untold_.size() < kMaxUntold) untold_.push_back(*end);
    globals().remote_ends.pop();
  }
}

void Drain::close_remotely_ended(Thread& thread, uint64_t until_ticks) {
  for (size_t index = thread.open.size(); index-- > 0;) {
    OpenRange& open = thread.open[index];
    const auto found = remote_.find(open.key);
    if (found == remote_.end() || found->second.ticks > until_ticks) continue;
    const RemoteEnd& end = found->second;
    if (end.error_size != 0)
      open.row.fill_seldom().error = names_.intern({end.error, end.error_size});
    const uint32_t end_thread = thread_index(end.thread_number, thread.index);
    std::vector<ClosedRemotely>& kept =
        thread.closed_remotely;  // its thread may begin ranges in it until it is told
    if (kept.size() == ClosedElsewhere::kCapacity) kept.erase(kept.begin());
    kept.push_back({open.ordinal,
                    {open.row.parent, open.row.parent != 0 ? open.row.root : 0, open.row.context}});
    seal(thread, open, clock_->monotonic_ns(end.ticks),
         (end.flags & (kEventFlags | kShown)) | kCrossing, end_thread);
    remote_.erase(found);
  }
}

// The thread that began a range which another one ended still has it on its stack of open ranges.
void Drain::tell_closed_elsewhere() {
  const auto told = [this](const RemoteEnd& end) {
    for (Thread& thread : threads_) {
      const ThreadBuffer& buffer = *thread.buffer;
      const bool began_it = end.begin_thread_id != 0
                                ? buffer.thread_id.load() == end.begin_thread_id
                                : buffer.number == end.key >> kOrdinalBits;
      if (began_it) return thread.buffer->closed_elsewhere.push(end.key);
    }
    return true;  // the thread is gone
  };
  untold_.erase(std::remove_if(untold_.begin(), untold_.end(), told), untold_.end());
}

void Drain::close_all_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    while (!thread.open.empty()) seal(thread, thread.open.back(), now_ns, kPartial, thread.index);
  }
}

// As if they ended now, innermost first; they stay open.
void Drain::copy_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    if (!thread.open.empty()) list(thread);
    std::for_each(thread.open.rbegin(), thread.open.rend(), [&](const OpenRange& open) {
      FullRow row = open.row;
      row.flags |= kPartial;
      end_row(row, now_ns, thread.index, thread.index);
      out_.rows.add(row);
    });
  }
}

}  // namespace recfn
