// Which threads record nothing while they run Python, and in which ranges that lies.
#include "drain/python_samples.hpp"

#include <algorithm>
#include <utility>

#include "drain/drain.hpp"

namespace recfn {
namespace {

// A thread that waits for work may be quiet for hours: it is looked at less and less often, but
// each second.
constexpr int64_t kQuietShare = 10;
constexpr int64_t kMaxPauseNs = 1'000'000'000;

uint64_t unsampled_begins(const ThreadBuffer& buffer) {
  return buffer.counts.unsampled.load(std::memory_order_relaxed);
}

uint64_t written_position(const ThreadBuffer& buffer) {
  return buffer.reading.published.load(std::memory_order_acquire);
}

}  // namespace

void Drain::begin_looks() {
  now();  // the clock is measured, if it wasn't yet
  meet_new_threads();
  const uint64_t ticks = read_ticks(globals_.use_cycle_counter);
  for (Thread& thread : threads_) {
    thread.looks = Looks{};
    thread.looks.first_position = written_position(*thread.buffer);
    thread.looks.ticks = ticks;
  }
}

bool Drain::is_due(const Thread& thread, uint64_t ticks) const {
  const Looks& looks = thread.looks;
  const bool is_followed = written_position(*thread.buffer) != looks.first_position;
  if (!is_followed || thread.has_ended) return false;
  const int64_t pause_ns = std::min(looks.quiet_ns / kQuietShare, kMaxPauseNs);
  return static_cast<double>(ticks - looks.ticks) * globals_.ns_per_tick >=
         static_cast<double>(pause_ns);
}

bool Drain::begin_look() {
  meet_new_threads();
  bool has_any = false;
  const uint64_t ticks = read_ticks(globals_.use_cycle_counter);
  for (Thread& thread : threads_) {
    Looks& looks = thread.looks;
    if (looks.ticks == 0) looks.ticks = ticks;  // it has begun to record since the last look
    const uint64_t position = written_position(*thread.buffer);
    if (position != looks.position) {
      looks.position = position;
      looks.unsampled = unsampled_begins(*thread.buffer);
      looks.quiet_ns = 0;
    }
    looks.is_under_way = is_due(thread, ticks);
    has_any = has_any || looks.is_under_way;
  }
  return has_any;
}

std::vector<QuietThread> Drain::end_look() {
  std::vector<QuietThread> quiet;
  const uint64_t ticks = read_ticks(globals_.use_cycle_counter);
  for (Thread& thread : threads_) {
    Looks& looks = thread.looks;
    if (!std::exchange(looks.is_under_way, false)) continue;
    const auto duration_ns =
        static_cast<int64_t>(static_cast<double>(ticks - looks.ticks) * globals_.ns_per_tick);
    looks.ticks = ticks;
    const ThreadBuffer& buffer = *thread.buffer;
    // Operators below a span that isn't sampled are begun, too, and written nowhere.
    const bool is_quiet = written_position(buffer) == looks.position &&
                          unsampled_begins(buffer) == looks.unsampled && !thread.has_ended;
    looks.quiet_ns = is_quiet ? looks.quiet_ns + duration_ns : 0;
    if (is_quiet) {
      QuietThread found{};
      found.number = buffer.number;
      found.ident = buffer.identity.ident;
      found.native_id = buffer.identity.native_id;
      found.position = looks.position;
      found.duration_ns = duration_ns;
      quiet.push_back(found);
    }
  }
  return quiet;
}

void Drain::add_sample(uint64_t thread_number, NewSample sample) {
  const auto is_it = [thread_number](const Thread& thread) {
    return thread.buffer->number == thread_number;
  };
  const auto found = std::find_if(threads_.begin(), threads_.end(), is_it);
  if (found == threads_.end()) return;
  // The moment of the look, at which the thread was at that position. It may have gone on since.
  sample.ticks = found->looks.ticks;
  found->samples.push_back(std::move(sample));
}

// An operator is no Python: what it takes is its own time, whatever frame is below it. But what its
// thread waits for there is of interest.
void Drain::place(Thread& thread, const NewSample& sample) {
  const OpenRange* const open = innermost(thread, thread.open.data() + thread.open.size());
  const bool is_in_operator = open != nullptr && open->row.scope != kUserScope;
  if (is_in_operator && sample.waits_for.empty()) return;
  const bool has_open = open != nullptr;
  const int64_t time_ns = clock_->monotonic_ns(sample.ticks) + clock_->offset_ns(sample.ticks);
  Sample placed{};
  placed.parent = has_open ? open->row.event_id : 0;
  placed.last_begun = make_event_id(thread.buffer->number, thread.ordinal);
  placed.time_ns = time_ns;
  placed.since_ns = std::min(thread.last_ns, time_ns);
  // It had been quiet for long, was looked at seldom, and has recorded something meanwhile.
  const int64_t longest_ns = std::max(kLookPeriodNs, time_ns - placed.since_ns);
  placed.duration_ns = std::min(sample.duration_ns, longest_ns);
  placed.name = names_.intern(sample.name);
  placed.thread = thread.index;
  placed.context = has_open ? open->row.context : thread.context;
  placed.waits_for = names_.intern(sample.waits_for);
  placed.item = names_.intern(sample.item);
  placed.is_in_operator = is_in_operator;
  placed.is_directly_in_span = !has_open || open->row.source == kStepSource;
  out_.samples.push_back(placed);
}

}  // namespace recfn
