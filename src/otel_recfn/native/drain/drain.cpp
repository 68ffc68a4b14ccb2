#include "drain/drain.hpp"

#include <algorithm>
#include <utility>

#include "drain/node_ids.hpp"
#include "memory/kept_blocks.hpp"

namespace recfn {
namespace {

double nominal_ns_per_tick(bool use_cycle_counter) {
  if (!use_cycle_counter) return 1;
  const Reading first = read_clocks(true);
  while (static_cast<int64_t>(monotonic_ns()) - first.monotonic_ns < 2'000'000) {
  }
  const Reading last = read_clocks(true);
  return static_cast<double>(last.monotonic_ns - first.monotonic_ns) / static_cast<double>(last.ticks - first.ticks);
}

}  // namespace

Drain& drain() {
  static Drain* instance = new Drain;  // never destroyed, as the registry
  return *instance;
}

Drained Drain::run(bool close_open, bool open_ranges, uint64_t epoch, size_t known) {
  if (!clock_started_) start_clock();
  for (Thread& thread : threads_) thread.listed = false;
  size_t closed = SIZE_MAX;
  try {
    read(close_open);
    closed = out_.closed = out_.rows.size();
    if (open_ranges) copy_open(clock_.monotonic_ns(read_ticks(globals_.use_cycle_counter)));
    out_.contexts = contexts_;
    out_.epoch = names_.epoch(), out_.new_names = names_from(epoch, known);
    return std::exchange(out_, {});
  } catch (...) {
    count_discarded(std::min(closed, out_.rows.size()));
    out_ = {};
    give_up_open();
    throw;
  }
}

void Drain::start_clock() {
  const bool cycles = globals().use_cycle_counter;
  clock_.start(read_clocks(cycles), nominal_ns_per_tick(cycles)), clock_started_ = true;
}

void Drain::begin_recording() {
  give_up_open();  // ranges that no last drain has closed
  remote_.clear();
  earlier_ended_at_ = ended_at_.load();
  if (!clock_started_) start_clock();
  clock_.begin(read_clocks(globals().use_cycle_counter));
  keep_blocks(true);
}

void Drain::end_recording() {
  ended_at_.store(read_ticks(globals().use_cycle_counter));
  keep_blocks(false);
}

void Drain::give_up_open() {
  for (Thread& thread : threads_) {
    count_discarded(thread.open.size());
    thread.open.clear();
    thread.open_calls = 0;
  }
}

void Drain::note_jump(int64_t jump_ns) {
  out_.clock_jump_ns += jump_ns;
  if (jump_ns == 0) return;
  for (Thread& thread : threads_) {
    for (OpenRange& open : thread.open) open.row.flags |= kClockJumped;
  }
}

void Drain::read(bool close_open) {
  note_jump(clock_.anchor(read_clocks(globals_.use_cycle_counter)));
  node_ids().now();
  compact_contexts();
  if (names_.too_large()) compact_names();
  collect_other_offsets();
  meet_new_threads();
  note_ended();
  collect_remote_ends();
  if (!remote_.empty()) meet_new_threads();  // who ended a range since then is known too
  list_threads();
  const uint64_t until = close_open ? UINT64_MAX : read_ticks(globals_.use_cycle_counter);
  for (Thread& thread : threads_) {
    if (thread.listed) read_thread(thread, until);
  }
  tell_closed_elsewhere();
  age_remote_ends();
  if (close_open) close_all_open(clock_.monotonic_ns(read_ticks(globals_.use_cycle_counter)));
  retire_ended();
}

void Drain::after_fork_in_child() {
  threads_.clear(), remote_.clear(), untold_.clear();
  contexts_.assign(1, Context{});
  discarded_.store(0);
  node_ids().after_fork_in_child();
}

}  // namespace recfn
