// A run of the drain, and the tables that rows index.
//
//   1. the clock    a new line begins, by which what comes from now on is converted
//   2. threads      those that began to record are met; whether one has ended is asked before 3,
//                   since its last act may be to end another one's range
//   3. remote ends  are taken from their queue, by key
//   4. rings        are read, each up to the same moment; remote ends close ranges at theirs
//   5. steps        that are over are given
//   6. ended        threads of which nothing is left are retired
//
// All begins are read up to one moment: a later one may lie in a range of a thread that was read
// before, and would be given before that.
#include "drain/drain.hpp"

#include <algorithm>
#include <utility>

namespace recfn {
namespace {

constexpr size_t kCompactContextsAbove = 16;  // what reads a batch looks at every context

double nominal_ns_per_tick(bool use_cycle_counter) {
  if (!use_cycle_counter) return 1;
  const Reading first = read_clocks(true);
  // Busy, once in a process: 2 ms are long enough that the errors of both readings matter little
  // until ClockMapping has measured the rate over a second, and too short to be noticed.
  while (static_cast<int64_t>(monotonic_ns()) - first.monotonic_ns < 2'000'000) {
  }
  const Reading last = read_clocks(true);
  return static_cast<double>(last.monotonic_ns - first.monotonic_ns) /
         static_cast<double>(last.ticks - first.ticks);
}

template <typename Visit>
void each_text(std::optional<OptionalFields>& row, const Visit& visit) {
#define RECFN_VISIT(type, name, ...) visit(row->name);
  if (row) {
    RECFN_COLUMNS(RECFN_NO_COLUMN, RECFN_NO_COLUMN, RECFN_NO_COLUMN, RECFN_VISIT)
  }
#undef RECFN_VISIT
}

}  // namespace

Drain& drain() {
  static Drain* instance = new Drain;  // never destroyed, as the registry
  return *instance;
}

Drained Drain::run(bool close_open, bool open_ranges, bool end_steps, const IdleLimits& idle_limits,
                   uint64_t epoch, size_t known) {
  idle_limits_ = idle_limits;
  size_t closed = SIZE_MAX;
  try {
    read(close_open, end_steps);
    closed = out_.rows.size();
    out_.closed = closed;
    if (open_ranges) {
      const int64_t now_ns = clock_->monotonic_ns(read_ticks(globals_.use_cycle_counter));
      copy_open(now_ns);
      copy_steps(now_ns + clock_->offset_ns());
    }
    out_.contexts = contexts_;
    out_.epoch = names_.epoch();
    for (size_t i = names_.epoch() == epoch ? known : 0; i < names_.size(); ++i) {
      out_.new_names.push_back(names_.text(i));
    }
    compact_contexts();  // what was read refers to the tables as they were
    if (names_.too_large()) compact_names();
    return take();
  } catch (...) {
    drop_read(closed);
    throw;
  }
}

std::optional<NamedTraceStart> Drain::trace_of(uint64_t event_id, const IdleLimits& idle_limits) {
  idle_limits_ = idle_limits;
  Thread* thread = nullptr;
  try {
    thread = read_now(event_id >> kOrdinalBits);
  } catch (...) {
    drop_read(SIZE_MAX);
    throw;
  }
  if (thread == nullptr) return std::nullopt;
  const OpenRange* range = find_open(*thread, event_id);
  if (range != nullptr && !range->is_outermost) range = find_open(*thread, range->row.root);
  if (range == nullptr || range->trace.first == 0) return std::nullopt;
  const TraceStart& start = range->trace;
  return NamedTraceStart{start.first, names_.text(start.name), start.source, start.flags};
}

// Null if there is no thread with that number.
Drain::Thread* Drain::find_thread(uint64_t number) {
  const auto has_number = [number](const Thread& one) { return one.buffer->number == number; };
  const auto found = std::find_if(threads_.begin(), threads_.end(), has_number);
  return found != threads_.end() ? &*found : nullptr;
}

// Reads what the thread with that number has recorded, as a run does, unless too many rows wait for
// a run. Null if there is no such thread.
Drain::Thread* Drain::read_now(uint64_t number) {
  const bool reads = clock_ && out_.rows.size() < kMostReadBetweenRuns;
  if (reads) collect_remote_ends();
  // After the ends, so that who ended a range is known; before a thread is found, since it moves
  // all of them.
  meet_new_threads();
  Thread* const found = find_thread(number);
  if (found != nullptr && reads) {
    list(*found);
    read_thread(*found, read_ticks(globals_.use_cycle_counter));
  }
  return found;
}

Drained Drain::take() {
  for (Thread& thread : threads_) thread.index = kUnlisted;
  return std::exchange(out_, {});
}

// `closed`: so many of the rows that were read are no copies of open ranges.
void Drain::drop_read(size_t closed) {
  count_discarded(std::min(closed, out_.rows.size()));
  take();
  drop_open();
}

void Drain::read(bool close_open, bool end_steps) {
  follow_clock();
  meet_new_threads();
  // One that ends later may yet end a range for another thread, which then says that it was this
  // one.
  for (Thread& thread : threads_) {
    thread.has_ended = thread.buffer->reading.ended.load(std::memory_order_acquire);
  }
  collect_remote_ends();
  if (!remote_.empty()) meet_new_threads();  // who ended a range since then is known too
  list_threads();
  const uint64_t until = close_open ? UINT64_MAX : read_ticks(globals_.use_cycle_counter);
  node_ids().now();  // it notes what PyTorch's default has become
  for (Thread& thread : threads_) {
    if (thread.index != kUnlisted) read_thread(thread, until);
  }
  report_remote_ends();
  if (close_open) close_all_open(clock_->monotonic_ns(read_ticks(globals_.use_cycle_counter)));
  // The begins of these ends had been written before: what is left was not recorded.
  remote_.clear();
  settle_steps(end_steps || close_open);
  retire_ended();
}

// The caller holds `clock_mutex_`.
ClockMapping& Drain::clock() {
  if (!clock_) {
    globals().ns_per_tick = nominal_ns_per_tick(globals_.use_cycle_counter);
    clock_.emplace(globals_.ns_per_tick);
    clock_->begin(read_clocks(globals_.use_cycle_counter));
  }
  return *clock_;
}

void Drain::begin_clock() {
  const std::lock_guard lock(clock_mutex_);
  clock().begin(read_clocks(globals_.use_cycle_counter));
}

void Drain::follow_clock() {
  const std::lock_guard lock(clock_mutex_);
  out_.clock_jump_ns += clock().anchor(read_clocks(globals_.use_cycle_counter));
}

Moment Drain::now() {
  const std::lock_guard lock(clock_mutex_);
  const ClockMapping& mapping = clock();
  const uint64_t ticks = read_ticks(globals_.use_cycle_counter);
  const int64_t monotonic_ns = mapping.monotonic_ns(ticks);
  return {ticks, monotonic_ns, monotonic_ns + mapping.offset_ns(ticks)};
}

// Not in another order: a run holds the first as it takes the second.
void Drain::before_fork() {
  mutex_.lock();
  clock_mutex_.lock();
}

void Drain::after_fork() {
  clock_mutex_.unlock();
  mutex_.unlock();
}

void Drain::begin_recording() {
  drop_read(SIZE_MAX);  // with the ranges that no last drain has closed
  earlier_ended_at_ = ended_at_.load();
  begin_clock();
  spare_blocks.keep(true);
}

void Drain::end_recording() {
  ended_at_.store(read_ticks(globals().use_cycle_counter));
  spare_blocks.keep(false);
}

// What a thread has begun is known by its ordinal, without reading its ring.
void Drain::discard_unread() {
  drop_open();
  meet_new_threads();
  for (Thread& thread : threads_) {
    const uint64_t begins = thread.buffer->ordinal.load(std::memory_order_relaxed);
    const uint64_t known = std::max(thread.ordinal, thread.last_discarded);
    thread.last_discarded = std::max(begins, known);
    count_discarded(thread.last_discarded - known);
  }
}

void Drain::drop_open() {
  remote_.clear();
  for (Thread& thread : threads_) {
    const auto has_begun = [&thread](const OpenRange& open) {
      // Else its begin failed, and is read again.
      return open.row.event_id <= make_event_id(thread.buffer->number, thread.ordinal);
    };
    const auto lost = std::count_if(thread.open.begin(), thread.open.end(), has_begun);
    count_discarded(static_cast<size_t>(lost));
    thread.open.clear();
    thread.open_calls = 0;
    thread.steps.forget();
    thread.samples.clear();
  }
}

void Drain::after_fork_in_child() {
  threads_.clear();
  unreported_.clear();
  remote_.clear();
  out_ = {};  // the parent's
  contexts_.assign(1, Context{});
  discarded_.store(0);
}

void Drain::meet_new_threads() {
  for (ThreadBuffer* buffer : registry().snapshot()) {
    if (buffer->reading.is_known) continue;
    threads_.emplace_back(buffer);
    buffer->reading.is_known = true;
  }
}

// Lists the threads that rows of this drain may refer to, because thousands of others may have
// recorded nothing. Also reserves memory for all rows that are to be expected: growing step by step
// would copy them.
void Drain::list_threads() {
  uint64_t expected = 0;
  for (Thread& thread : threads_) {
    const ThreadBuffer& buffer = *thread.buffer;
    const uint64_t unread = buffer.reading.published.load(std::memory_order_acquire) -
                            buffer.reading.consumed.load(std::memory_order_relaxed);
    if (unread != 0 || !thread.open.empty() || !thread.samples.empty()) list(thread);
    if (unread == 0) continue;
    const uint64_t unended =
        thread.open.size() + buffer.ordinal.load(std::memory_order_relaxed) - thread.ordinal;
    expected += std::min(unended, unread / kEndWords);  // what stays open is no row
  }
  const uint64_t meanwhile = expected / 16;  // more begin and end until their rings are read
  if (expected != 0) out_.rows.reserve(out_.rows.size() + expected + meanwhile);
}

void Drain::list(Thread& thread) {
  const ThreadBuffer& buffer = *thread.buffer;
  if (thread.index == kUnlisted) {
    thread.index = static_cast<uint32_t>(out_.threads.size());
    out_.threads.emplace_back();
  }
  out_.threads[thread.index] = {buffer.number, buffer.identity.thread_id.load(),
                                buffer.identity.native_id, buffer.identity.ident};
}

uint32_t Drain::thread_index(uint64_t number, uint32_t otherwise) {
  Thread* const found = find_thread(number);
  if (found == nullptr) return otherwise;  // it is gone
  list(*found);
  return found->index;
}

// Steps that are over, also where their thread does nothing any more.
void Drain::settle_steps(bool all) {
  const int64_t now_ns =
      clock_->monotonic_ns(read_ticks(globals_.use_cycle_counter)) + clock_->offset_ns();
  for (Thread& thread : threads_) {
    if (!thread.steps.may_end()) continue;
    list(thread);
    thread.steps.end_stretches(now_ns, idle_limits_.ns, thread.index, all || thread.has_ended,
                               out_.steps);
  }
}

// The threads were listed as steps were settled. The copies of open ranges end now, and a step is
// longer than they are.
void Drain::copy_steps(int64_t now_ns) {
  for (const Thread& thread : threads_) {
    if (thread.index == kUnlisted) continue;
    thread.steps.copy_unfinished(now_ns + 1, thread.index, out_.unfinished_steps);
  }
}

// A thread that ended is forgotten when everything it wrote was read, and no range of it waits for
// another thread's end.
void Drain::retire_ended() {
  const auto finished = [](Thread& thread) {
    ThreadBuffer& buffer = *thread.buffer;
    if (!thread.has_ended || !thread.open.empty()) return false;
    if (buffer.reading.published.load(std::memory_order_acquire) !=
        buffer.reading.consumed.load(std::memory_order_relaxed)) {
      return false;
    }
    registry().retire(&buffer);
    return true;
  };
  threads_.erase(std::remove_if(threads_.begin(), threads_.end(), finished), threads_.end());
}

void Drain::compact_names() {
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      for (uint32_t& name : thread.dictionary) visit(name);
      thread.steps.visit_names(visit);
      for (OpenRange& range : thread.open) {
        visit(range.row.name);
        visit(range.trace.name);
        each_text(range.row.optional_fields, visit);
      }
      each_text(thread.pending, visit);
    }
  };
  std::vector<bool> live(names_.size());
  each_reference([&live](uint32_t index) { live[index] = true; });
  const std::vector<uint32_t> moved = names_.start_epoch(live);
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
}

void Drain::compact_contexts() {
  if (contexts_.size() < kCompactContextsAbove) return;
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      visit(thread.context);
      thread.steps.visit_context(visit);
      for (OpenRange& range : thread.open) {
        visit(range.row.context);
        visit(range.step_context);
      }
      for (ClosedRemotely& closed : thread.closed_remotely) visit(closed.parents.context);
    }
  };
  std::vector<bool> referred(contexts_.size());
  each_reference([&referred](uint32_t index) { referred[index] = true; });
  std::vector<Context> live{Context{}};
  std::vector<uint32_t> moved(contexts_.size());
  for (uint32_t index = 1; index < contexts_.size(); ++index) {
    if (!referred[index]) continue;
    moved[index] = static_cast<uint32_t>(live.size());
    live.push_back(contexts_[index]);
  }
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
  contexts_.swap(live);
}

}  // namespace recfn
