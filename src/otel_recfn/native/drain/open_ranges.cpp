// The ranges that are open: what each lies in, and the row it becomes when it is closed, in its own thread or from another one.
#include "drain/drain.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace recfn {
namespace {

constexpr size_t kMaxPendingRemote = 65'536;
constexpr int kRemoteEndPatience = 3;  // drains to wait for the begin of a remote end

uint64_t caller_of(const FullRow& row) { return row.seldom ? row.seldom->caller : SeldomRow{}.caller; }

}  // namespace

void Drain::end_row(Row& row, int64_t end_ns, uint32_t thread, uint32_t end_thread) {
  row.end_ns = std::max(end_ns, row.start_ns);
  row.thread = thread, row.end_thread = end_thread;
  row.start_ns += row.offset_ns, row.end_ns += row.offset_ns;
}

// The innermost open range that what begins next lies in, unless records say what it lies in; null where there is none.
const Drain::OpenRange* Drain::range_around(const Thread& thread, bool base) {
  if (base || thread.parent_ordinal != 0) return nullptr;
  for (auto open = thread.open.rbegin(); open != thread.open.rend(); ++open) {
    if ((open->row.flags & kAsync) == 0) return &*open;
  }
  return nullptr;
}

// In the range that it names; where another thread has ended that one meanwhile, in what was around it.
std::optional<Drain::Place> Drain::place_in_named(const Thread& thread) const {
  std::optional<Place> place;
  for (uint64_t ordinal = thread.parent_ordinal;;) {
    const auto is_named = [ordinal](const auto& range) { return range.ordinal == ordinal; };
    const auto open = std::find_if(thread.open.rbegin(), thread.open.rend(), is_named);
    if (open != thread.open.rend()) return Place{open->row.event_id, open->row.root, open->row.context};
    const auto closed = std::find_if(thread.closed_remotely.rbegin(), thread.closed_remotely.rend(), is_named);
    if (closed == thread.closed_remotely.rend()) return place;
    place = closed->place;
    if (place->parent >> kOrdinalBits != thread.buffer->number) return place;
    ordinal = place->parent & kOrdinalMask;
  }
}

// Its thread may begin ranges in it until it is told.
void Drain::keep_closed_remotely(Thread& thread, const OpenRange& closed) {
  std::vector<ClosedRemotely>& kept = thread.closed_remotely;
  if (kept.size() == ClosedElsewhere::kCapacity) kept.erase(kept.begin());
  kept.push_back({closed.ordinal, {closed.row.parent, closed.row.parent != 0 ? closed.row.root : 0, closed.row.context}});
}

// Whether it is a Python call: a traced one, or a module's inside one, which is no optimizer's step.
bool Drain::is_call(const FullRow& row) const {
  if (row.source != kModuleSource || caller_of(row) == 0) return row.source == kPythonCallSource;
  const std::string_view prefix = kCallPrefixes[kModuleSource];
  return names_.text(row.name).compare(0, prefix.size(), prefix) == 0;
}

// Event id of the innermost Python call that is open in the thread, whatever lies between; 0: there is none.
uint64_t Drain::innermost_call(const Thread& thread) const {
  const auto holds_call = [this](const OpenRange& open) { return is_call(open.row); };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), holds_call);
  return found != thread.open.rend() ? found->row.event_id : 0;
}

// Where what begins now lies, as records say it: in the range that it names, or else in what the last Context record tells.
Drain::Place Drain::told_place(const Thread& thread, bool base, uint64_t event_id) const {
  const bool is_named = !base && thread.parent_ordinal != 0;
  if (const std::optional<Place> place = is_named ? place_in_named(thread) : std::nullopt) {
    return {place->parent, place->root != 0 ? place->root : event_id, place->context};
  }
  const uint64_t parent = thread.enclosing;
  return {parent, parent == 0 ? event_id : thread.root != 0 ? thread.root : parent, thread.context};
}

void Drain::collect_other_offsets() {
  other_offsets_.clear();
  for (const Thread& thread : threads_) {
    for (const OpenRange& open : thread.open) {
      if (open.row.offset_ns != clock_.offset_ns()) other_offsets_.emplace(open.row.event_id, open.row.offset_ns);
    }
  }
}

int64_t Drain::offset_of(const Thread& thread, uint64_t parent, int64_t start_ns) const {
  if (!other_offsets_.empty()) {  // mostly it is, and a look into it costs a division
    const auto other = other_offsets_.find(parent);  // also of a parent in another thread
    if (other != other_offsets_.end()) return other->second;
  }
  const auto is_parent = [parent](const OpenRange& open) { return open.row.event_id == parent; };
  auto around = std::find_if(thread.open.rbegin(), thread.open.rend(), is_parent);
  const bool inside_parent = around != thread.open.rend();
  if (!inside_parent) around = thread.open.rbegin();
  const bool inside = around != thread.open.rend();
  const auto around_ns = inside ? std::optional(around->row.offset_ns) : std::nullopt;
  return thread.offsets.choose(around_ns, inside_parent, clock_.offset_ns(), start_ns);
}

// The flags of an end that crosses other ranges of its thread, where the range isn't asynchronous anyway.
uint32_t Drain::crossing_if(bool crosses, const Row& row, uint32_t end_flags) {
  return crosses && ((row.flags | end_flags) & kAsync) == 0 ? end_flags | kCrossing : end_flags;
}

void Drain::seal(Thread& thread, OpenRange& open, int64_t end_ns, uint32_t flags, LeftBy left_by, uint32_t end_thread) {
  FullRow& range = open.row;
  if (left_by.is_told()) range.fill_seldom().error = left_by.error, range.fill_seldom().stacktrace = left_by.stacktrace;
  range.flags |= flags | (left_by.error != 0 ? uint32_t{kError} : 0u);
  end_row(range, end_ns, thread.index, end_thread);
  out_.rows.add(range);
  thread.offsets.passed(range.end_ns);
  thread.open_calls -= range.source == kPythonCallSource;
  if (&open == &thread.open.back()) return thread.open.pop_back();
  thread.open.erase(thread.open.begin() + (&open - thread.open.data()));
}

// A range begins in one call (`__enter__`) and ends in another (`__exit__`), which both return while it or they are open. So that
// all nest, what ends first ends where that began which stays open in it, and that moves out. Returns that moment; nothing where
// no call is concerned, or where what ends lies in nothing: what began in it then stays in it.
std::optional<int64_t> Drain::let_out(Thread& thread, const OpenRange& open) {
  const FullRow& ended = open.row;
  const auto inner = thread.open.begin() + (&open - thread.open.data()) + 1;
  if (inner == thread.open.end() || ended.parent == 0 || (ended.flags & kAsync) != 0) return std::nullopt;
  const auto is_call_or_async = [](const OpenRange& one) {
    return one.row.source == kPythonCallSource || (one.row.flags & kAsync) != 0;
  };
  if (ended.source != kPythonCallSource && !std::all_of(inner, thread.open.end(), is_call_or_async)) return std::nullopt;
  std::optional<int64_t> first_ns;
  for (auto one = inner; one != thread.open.end(); ++one) {
    if (one->row.parent != ended.event_id || (one->row.flags & kAsync) != 0) continue;
    if (!first_ns) first_ns = one->row.start_ns;
    one->row.parent = ended.parent;
    if (caller_of(one->row) == ended.event_id) one->row.fill_seldom().caller = caller_of(ended);
  }
  return first_ns;
}

void Drain::close_remotely_ended(Thread& thread, uint64_t until_ticks) {
  for (size_t index = thread.open.size(); index-- > 0;) {
    OpenRange& open = thread.open[index];
    const auto found = remote_.find(open.key);
    if (found == remote_.end() || found->second.end.ticks > until_ticks) continue;
    const RemoteEnd& end = found->second.end;
    const uint32_t error = end.error_size != 0 ? names_.intern({end.error, end.error_size}) : 0;
    const uint32_t end_thread = thread_index(end.thread_number, thread.index);
    keep_closed_remotely(thread, open);
    const uint32_t flags = crossing_if(true, open.row, end.flags & (kEventFlags | kShown));
    seal(thread, open, clock_.monotonic_ns(end.ticks), flags, {error, 0}, end_thread);
    remote_.erase(found);
  }
}

void Drain::age_remote_ends() {
  for (auto at = remote_.begin(); at != remote_.end();) {
    at = --at->second.drains_left < 0 ? remote_.erase(at) : std::next(at);
  }
}

// Ends that still wait for their ranges.
bool Drain::has_ended_for_others(const Thread& thread) const {
  const auto is_its = [number = thread.buffer->number](const auto& one) { return one.second.end.thread_number == number; };
  return std::any_of(remote_.begin(), remote_.end(), is_its);
}

void Drain::collect_remote_ends() {
  while (const RemoteEnd* end = globals().remote_ends.front()) {
    // Of several ends of one range the first counts.
    if (remote_.size() < kMaxPendingRemote) remote_.try_emplace(end->key, PendingRemote{*end, kRemoteEndPatience});
    if (untold_.size() < kMaxPendingRemote) untold_.push_back(*end);
    globals().remote_ends.pop();
  }
}

// The thread that began a range which another one ended still has it on its stack of open ranges.
void Drain::tell_closed_elsewhere() {
  const auto told = [this](const RemoteEnd& end) {
    for (Thread& thread : threads_) {
      const ThreadBuffer& buffer = *thread.buffer;
      const bool began_it = end.begin_thread_id != 0 ? buffer.thread_id.load() == end.begin_thread_id
                                                     : buffer.number == end.key >> kOrdinalBits;
      if (began_it) return thread.buffer->closed_elsewhere.push(end.key);
    }
    return true;  // the thread is gone
  };
  untold_.erase(std::remove_if(untold_.begin(), untold_.end(), told), untold_.end());
}

void Drain::close_all_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    while (!thread.open.empty()) seal(thread, thread.open.back(), now_ns, kPartial, {}, thread.index);
  }
  remote_.clear();
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
