#include "drain/drain.hpp"

#include <new>

#include "drain/node_ids.hpp"
#include "memory/kept_blocks.hpp"

namespace recfn {
namespace {

constexpr size_t kMaxWaitingRows = 65'536;  // of drains that nobody could take for want of memory; rings are not read beyond

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

const Drained& Drain::run(bool close_open, bool open_ranges) {
  Globals& shared = globals();
  ++runs_;
  if (is_earlier_) discard_untaken();
  if (!clock_started_) start_clock();
  note_jump(clock_.anchor(read_clocks(shared.use_cycle_counter)));
  collect_other_offsets();
  out_.rows.cut(out_.closed);  // without the copies of a run that was not taken
  node_ids().now();
  short_of_memory_ = false;
  if (out_.rows.size() < kMaxWaitingRows) {
    read(close_open);
  } else {
    short_of_memory_ = true;
  }
  out_.closed = out_.rows.size();
  out_.complete = !short_of_memory_;
  out_.contexts = contexts_;
  if (open_ranges) copy_open(clock_.monotonic_ns(read_ticks(shared.use_cycle_counter)));
  if (short_of_memory_ && out_.rows.empty() && out_.opened.empty()) throw std::bad_alloc();
  return out_;
}

void Drain::start_clock() {
  const bool cycles = globals().use_cycle_counter;
  clock_.start(read_clocks(cycles), nominal_ns_per_tick(cycles)), clock_started_ = true;
}

void Drain::begin_recording() {
  give_up_earlier();
  earlier_ended_at_ = ended_at_.load();
  if (!clock_started_) start_clock();
  clock_.begin(read_clocks(globals().use_cycle_counter));
  keep_blocks(true);
}

void Drain::end_recording() {
  ended_at_.store(read_ticks(globals().use_cycle_counter));
  keep_blocks(false);
}

// Ranges that no last drain has closed. A signal handler may begin a recording before the last batch is taken: what
// was read for that one goes with the next run.
void Drain::give_up_earlier() {
  for (Thread& thread : threads_) {
    discarded_.fetch_add(thread.open.size(), std::memory_order_relaxed);
    thread.open.clear();
    thread.open_calls = 0;
  }
  is_earlier_ = true;
  remote_.clear();
}

void Drain::note_jump(int64_t jump_ns) {
  out_.clock_jump_ns += jump_ns;
  if (jump_ns == 0) return;
  for (Thread& thread : threads_) {
    for (OpenRange& open : thread.open) open.row.flags |= kClockJumped;
  }
}

void Drain::read(bool close_open) {
  const auto attempt = [this](auto work) { short_of_memory_ |= !done(work); };
  if (out_.rows.empty() && out_.opened.empty() && names_.too_large()) attempt([this] { compact_names(); });
  attempt([this] { meet_new_threads(); });
  note_ended();
  attempt([this] { collect_remote_ends(); });
  if (!remote_.empty()) attempt([this] { meet_new_threads(); });  // who ended a range since then is known too
  attempt([this] { list_threads(); });
  const uint64_t until = close_open ? UINT64_MAX : read_ticks(globals().use_cycle_counter);
  for (Thread& thread : threads_) {
    if (thread.listed) attempt([&] { read_thread(thread, until); });
  }
  tell_closed_elsewhere();
  if (short_of_memory_) return;
  age_remote_ends();
  if (close_open) attempt([this] { close_all_open(clock_.monotonic_ns(read_ticks(globals().use_cycle_counter))); });
  retire_ended();
}

bool Drain::taken(uint64_t run) {
  if (run != runs_) return false;
  forget_taken();
  return true;
}

void Drain::forget_taken() {
  out_ = Drained{};
  is_earlier_ = false;
  for (Thread& thread : threads_) thread.listed = false;
  done([this] { compact_contexts(); });
}

void Drain::discard_untaken() {
  discarded_.fetch_add(out_.closed, std::memory_order_relaxed);
  forget_taken();
}

void Drain::discard() {
  for (bool complete = false; !complete;) {
    done([&] { complete = run(true, false).complete; });
    if (!complete && out_.rows.empty()) break;
    discard_untaken();
  }
}

void Drain::after_fork_in_child() {
  threads_.clear(), remote_.clear(), untold_.clear();
  contexts_.assign(1, Context{});
  out_ = Drained{};
  is_earlier_ = false;
  discarded_.store(0), too_late_.store(0);
  node_ids().after_fork_in_child();
}

}  // namespace recfn
