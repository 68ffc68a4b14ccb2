#include "drain/drain.hpp"

#include <algorithm>
#include <utility>

namespace recfn {
namespace {

constexpr size_t kCompactContextsAbove = 16;  // what reads a batch looks at every context

double nominal_ns_per_tick(bool use_cycle_counter) {
  if (!use_cycle_counter) return 1;
  const Reading first = read_clocks(true);
  while (static_cast<int64_t>(monotonic_ns()) - first.monotonic_ns < 2'000'000) {
  }
  const Reading last = read_clocks(true);
  return static_cast<double>(last.monotonic_ns - first.monotonic_ns) /
         static_cast<double>(last.ticks - first.ticks);
}

template <typename Visit>
void each_text(std::optional<SeldomRow>& row, const Visit& visit) {
#define RECFN_VISIT(type, name, ...) visit(row->name);
  if (row) {
    RECFN_COLUMNS(RECFN_NO_COLUMN, RECFN_NO_COLUMN, RECFN_NO_COLUMN, RECFN_VISIT)
  }
#undef RECFN_VISIT
}

}  // namespace

int64_t default_node_id() {
  const auto of_torch = globals().default_node_id.load();
  return of_torch != nullptr ? of_torch() : globals().node_id.load();
}

void set_default_node_id(int64_t node_id) {
  globals().node_id.store(node_id);
  const auto of_torch = globals().set_default_node_id.load();
  if (of_torch != nullptr && node_id >= 0) of_torch(node_id);
}

Drain& drain() {
  static Drain* instance = new Drain;  // never destroyed, as the registry
  return *instance;
}

Drained Drain::run(bool close_open, bool open_ranges, uint64_t epoch, size_t known) {
  if (!clock_) begin_clock();
  for (Thread& thread : threads_) thread.index = kUnlisted;
  size_t closed = SIZE_MAX;
  try {
    read(close_open);
    closed = out_.closed = out_.rows.size();
    if (open_ranges) copy_open(clock_->monotonic_ns(read_ticks(globals_.use_cycle_counter)));
    out_.contexts = contexts_;
    out_.epoch = names_.epoch();
    for (size_t at = names_.epoch() == epoch ? known : 0; at < names_.size(); ++at)
      out_.new_names.push_back(names_.text(at));
    return std::exchange(out_, {});
  } catch (...) {
    count_discarded(std::min(closed, out_.rows.size()));
    out_ = {};
    drop_open();
    throw;
  }
}

void Drain::read(bool close_open) {
  follow_clock();
  compact_contexts();
  if (names_.too_large()) compact_names();
  meet_new_threads();
  // One that ends later may yet end a range for another thread, which then says that it was this
  // one.
  for (Thread& thread : threads_)
    thread.has_ended = thread.buffer->ended.load(std::memory_order_acquire);
  collect_remote_ends();
  if (!remote_.empty()) meet_new_threads();  // who ended a range since then is known too
  list_threads();
  const uint64_t until = close_open ? UINT64_MAX : read_ticks(globals_.use_cycle_counter);
  node_id_ = default_node_id();
  for (Thread& thread : threads_) {
    if (thread.index != kUnlisted) read_thread(thread, until);
  }
  tell_closed_elsewhere();
  if (close_open) close_all_open(clock_->monotonic_ns(read_ticks(globals_.use_cycle_counter)));
  remote_
      .clear();  // the begins of these ends had been written before: what is left was not recorded
  retire_ended();
}

void Drain::begin_clock() {
  if (!clock_)
    clock_.emplace(globals().ns_per_tick = nominal_ns_per_tick(globals_.use_cycle_counter));
  clock_->begin(read_clocks(globals_.use_cycle_counter));
}

void Drain::follow_clock() {
  out_.clock_jump_ns += clock_->anchor(read_clocks(globals_.use_cycle_counter));
}

void Drain::begin_recording() {
  drop_open();  // ranges that no last drain has closed
  earlier_ended_at_ = ended_at_.load();
  begin_clock();
  spare_blocks.keep(true);
}

void Drain::end_recording() {
  ended_at_.store(read_ticks(globals().use_cycle_counter));
  spare_blocks.keep(false);
}

void Drain::drop_open() {
  remote_.clear();
  for (Thread& thread : threads_) {
    count_discarded(thread.open.size());
    thread.open.clear();
    thread.open_calls = 0;
  }
}

void Drain::after_fork_in_child() {
  threads_.clear(), untold_.clear();
  contexts_.assign(1, Context{});
  discarded_.store(0);
}

void Drain::meet_new_threads() {
  for (ThreadBuffer* buffer : registry().snapshot()) {
    if (buffer->met) continue;
    threads_.emplace_back(buffer);
    buffer->met = true;
  }
}

// Lists the threads that rows of this drain may refer to, because thousands of others may have
// recorded nothing. Also reserves memory for all rows that are to be expected: growing step by step
// would copy them.
void Drain::list_threads() {
  uint64_t expected = 0;
  for (Thread& thread : threads_) {
    const ThreadBuffer& buffer = *thread.buffer;
    const uint64_t unread = buffer.published.load(std::memory_order_acquire) -
                            buffer.consumed.load(std::memory_order_relaxed);
    if (unread != 0 || !thread.open.empty()) list(thread);
    if (unread == 0) continue;
    const uint64_t unended =
        thread.open.size() + buffer.ordinal.load(std::memory_order_relaxed) - thread.ordinal;
    expected += std::min(unended, unread / kEndWords);  // what stays open is no row
  }
  const uint64_t meanwhile = expected / 16;  // more begin and end until their rings are read
  if (expected != 0) out_.rows.reserve(expected + meanwhile);
}

void Drain::list(Thread& thread) {
  const ThreadBuffer& buffer = *thread.buffer;
  if (thread.index == kUnlisted) {
    thread.index = static_cast<uint32_t>(out_.threads.size());
    out_.threads.emplace_back();
  }
  out_.threads[thread.index] = {buffer.number, buffer.thread_id.load(), buffer.native_id,
                                buffer.ident};
}

uint32_t Drain::thread_index(uint64_t number, uint32_t otherwise) {
  for (Thread& thread : threads_) {
    if (thread.buffer->number != number) continue;
    list(thread);
    return thread.index;
  }
  return otherwise;  // it is gone
}

// A thread that ended is forgotten when everything it wrote was read, and no range of it waits for
// another thread's end.
void Drain::retire_ended() {
  const auto finished = [](Thread& thread) {
    ThreadBuffer& buffer = *thread.buffer;
    if (!thread.has_ended || !thread.open.empty()) return false;
    if (buffer.published.load(std::memory_order_acquire) !=
        buffer.consumed.load(std::memory_order_relaxed))
      return false;
    registry().retire(&buffer);
    return true;
  };
  threads_.erase(std::remove_if(threads_.begin(), threads_.end(), finished), threads_.end());
}

void Drain::compact_names() {
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      for (uint32_t& name : thread.dictionary) visit(name);
      for (OpenRange& range : thread.open)
        visit(range.row.name), each_text(range.row.seldom, visit);
      each_text(thread.pending, visit);
    }
  };
  std::vector<bool> kept(names_.size());
  each_reference([&kept](uint32_t index) { kept[index] = true; });
  const std::vector<uint32_t> moved = names_.start_epoch(kept);
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
}

void Drain::compact_contexts() {
  if (contexts_.size() < kCompactContextsAbove) return;
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      visit(thread.context);
      for (OpenRange& range : thread.open) visit(range.row.context);
      for (ClosedRemotely& closed : thread.closed_remotely) visit(closed.place.context);
    }
  };
  std::vector<bool> referred(contexts_.size());
  each_reference([&referred](uint32_t index) { referred[index] = true; });
  std::vector<Context> kept{Context{}};
  std::vector<uint32_t> moved(contexts_.size());
  for (uint32_t index = 1; index < contexts_.size(); ++index) {
    if (!referred[index]) continue;
    moved[index] = static_cast<uint32_t>(kept.size());
    kept.push_back(contexts_[index]);
  }
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
  contexts_.swap(kept);
}

}  // namespace recfn
