// The ranges that are open: what each lies in, and the row it becomes when it is closed, in its own thread or from another one.
#include "drain/drain.hpp"

#include <algorithm>
#include <optional>

namespace recfn {
namespace {

constexpr size_t kMaxPendingRemote = 65'536;
constexpr int kRemoteEndPatience = 3;  // drains to wait for the begin of a remote end

#define RECFN_IS_FILLED(type, name, empty) | (row.name != type{empty})
uint32_t has_seldom(const Row& row) { return 0u RECFN_SELDOM_COLUMNS(RECFN_IS_FILLED); }
#undef RECFN_IS_FILLED

}  // namespace

void Drain::emit(Row row) {
  row.start_ns += row.offset_ns, row.end_ns += row.offset_ns;
  out_.has_seldom |= has_seldom(row) != 0;
  out_.rows.push_back(row);
}

// The range of the thread that the next begin lies in; null where it is what the last Context record says.
const Drain::OpenRange* Drain::parent_of(const Thread& thread, bool base) const {
  const uint64_t ordinal = thread.parent_ordinal;
  if (base) return nullptr;
  // A range that another thread ended meanwhile isn't open any more: what was around it is the parent.
  const auto is_parent = [ordinal](const OpenRange& open) {
    return (open.row.flags & kAsync) == 0 && (ordinal == 0 || open.ordinal <= ordinal);
  };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), is_parent);
  return found != thread.open.rend() ? &*found : nullptr;
}

// Parent, root and context of a range that begins now.
void Drain::place(Thread& thread, OpenRange& range, bool base) {
  Row& row = range.row;
  if (const OpenRange* parent = parent_of(thread, base)) {
    row.parent = parent->row.event_id, row.root = parent->row.root, row.context = parent->row.context;
  } else {
    row.parent = thread.enclosing, row.context = thread.context;
    row.root = row.parent == 0 ? row.event_id : thread.root != 0 ? thread.root : row.parent;
  }
  row.offset_ns = offset_of(thread, row);
  thread.offsets.passed(row.start_ns + row.offset_ns);
  if (row.parent != 0 || row.kind != kRangeEvent) return;
  out_.opened.push_back({row.event_id, row.name, row.source, row.start_ns + row.offset_ns, thread.index, row.context});
}

int64_t Drain::offset_of(const Thread& thread, const Row& row) const {
  const auto is_parent = [&row](const OpenRange& open) { return open.row.event_id == row.parent; };
  auto around = std::find_if(thread.open.rbegin(), thread.open.rend(), is_parent);
  const bool inside_parent = around != thread.open.rend();
  if (!inside_parent) around = thread.open.rbegin();
  const bool inside = around != thread.open.rend();
  const auto around_ns = inside ? std::optional(around->row.offset_ns) : std::nullopt;
  return thread.offsets.choose(around_ns, inside_parent, clock_.offset_ns(), row.start_ns);
}

void Drain::seal(Thread& thread, size_t index, int64_t end_ns, uint32_t flags, uint32_t error, uint32_t end_thread) {
  Row row = thread.open[index].row;
  row.flags |= flags | (error != 0 ? uint32_t{kError} : 0u);
  row.error = error;
  row.end_ns = std::max(end_ns, row.start_ns);
  row.thread = thread.index;
  row.end_thread = end_thread;
  thread.offsets.passed(row.end_ns + row.offset_ns);
  emit(row);  // the one thing here that may fail
  thread.open.erase(thread.open.begin() + static_cast<std::ptrdiff_t>(index));
}

void Drain::close_remotely_ended(Thread& thread, uint64_t until_ticks) {
  for (size_t index = thread.open.size(); index-- > 0;) {
    const auto found = remote_.find(thread.open[index].key);
    if (found == remote_.end() || found->second.end.ticks > until_ticks) continue;
    const RemoteEnd& end = found->second.end;
    const uint32_t error = end.error_size != 0 ? names_.intern({end.error, end.error_size}) : 0;
    seal(thread, index, clock_.monotonic_ns(end.ticks), end.flags & (kEventFlags | kShown), error,
         thread_index(end.thread_number, thread.index));
    remote_.erase(found);
  }
}

void Drain::age_remote_ends() {
  for (auto at = remote_.begin(); at != remote_.end();) {
    at = --at->second.drains_left < 0 ? remote_.erase(at) : std::next(at);
  }
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
    while (!thread.open.empty()) seal(thread, thread.open.size() - 1, now_ns, kPartial, 0, thread.index);
  }
  remote_.clear();
}

// As if they ended now, innermost first; they stay open.
void Drain::copy_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    if (!thread.open.empty()) list(thread);
    std::for_each(thread.open.rbegin(), thread.open.rend(), [&](const OpenRange& open) {
      Row row = open.row;
      row.flags |= kPartial;
      row.end_ns = std::max(now_ns, row.start_ns);
      row.thread = row.end_thread = thread.index;
      emit(row);
    });
  }
}

}  // namespace recfn
