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
// Looks may come late, or not at all for a while, as where the machine is suspended. A thread that
// has gone on since the last one wasn't quiet for all that time.
constexpr int64_t kMaxGapNs = 5 * kLookPeriodNs;
constexpr uint64_t kWordsWithTicks = 3;  // at a record's end, whatever its kind (core/record.hpp)

Progress progress_of(const ThreadBuffer& buffer) {
  return {buffer.reading.published.load(std::memory_order_acquire),
          buffer.counts.unsampled.load(std::memory_order_relaxed)};
}

// Whether the last record before a position is less than `moment` from `ticks`. What else is among
// its last words (a handle, a number) is hardly ever a time, and none of the last millisecond for
// longer than that. What the drain has read may be written over now: it isn't looked at, and counts
// as long ago, since the drain comes ten times a second.
bool has_just_recorded(const ThreadBuffer& buffer, uint64_t position, uint64_t ticks,
                       uint64_t moment) {
  const RingReading& reading = buffer.reading;
  const Ring& ring = reading.rings[reading.num_rings.load(std::memory_order_acquire) - 1];
  const uint64_t first = std::max(ring.from, reading.consumed.load(std::memory_order_relaxed));
  for (uint64_t back = 1; back <= kWordsWithTicks && first + back <= position; ++back) {
    const uint64_t word = ring.words[(position - back) & (ring.capacity - 1)];
    if (ticks + moment - word < 2 * moment) return true;
  }
  return false;
}

}  // namespace

int64_t Drain::nanoseconds(uint64_t ticks) const {
  return static_cast<int64_t>(static_cast<double>(ticks) * globals_.ns_per_tick);
}

void Drain::begin_looks() {
  now();  // the clock is measured, if it wasn't yet
  meet_new_threads();
  looked_at_ = read_ticks(globals_.use_cycle_counter);
  for (Thread& thread : threads_) {
    const Progress progress = progress_of(*thread.buffer);
    thread.looks = {progress.position, progress, looked_at_, looked_at_};
  }
}

bool Drain::look(std::vector<QuietThread>& quiet, int64_t pause_ns) {
  meet_new_threads();
  const uint64_t ticks = read_ticks(globals_.use_cycle_counter);
  bool is_unsure = nanoseconds(ticks - looked_at_) > pause_ns + kQuietNs;
  for (Thread& thread : threads_) {
    const uint64_t unsampled = thread.looks.progress.unsampled;
    const std::optional<QuietThread> found = look_at(thread, ticks);
    if (!found) continue;
    quiet.push_back(*found);
    is_unsure = is_unsure || thread.looks.progress.unsampled != unsampled;
  }
  looked_at_ = ticks;
  return is_unsure;
}

// Nothing if the thread isn't due for a look, or isn't quiet.
std::optional<QuietThread> Drain::look_at(Thread& thread, uint64_t ticks) const {
  const ThreadBuffer& buffer = *thread.buffer;
  const Progress progress = progress_of(buffer);
  Looks& looks = thread.looks;
  if (progress.position == looks.first_position || thread.has_ended) return std::nullopt;
  const bool has_gone_on = !(progress == looks.progress);
  if (has_gone_on) looks = {looks.first_position, progress, ticks, looked_at_};
  const int64_t quiet_ns = nanoseconds(ticks - looks.since);
  const int64_t elapsed_ns = nanoseconds(ticks - looks.ticks);
  if (elapsed_ns < std::min(quiet_ns / kQuietShare, kMaxPauseNs)) return std::nullopt;
  looks.ticks = ticks;
  const auto moment = static_cast<uint64_t>(static_cast<double>(kQuietNs) / globals_.ns_per_tick);
  if (has_just_recorded(buffer, progress.position, ticks, moment)) return std::nullopt;
  QuietThread found{};
  found.number = buffer.number;
  found.ident = buffer.identity.ident;
  found.native_id = buffer.identity.native_id;
  found.position = progress.position;
  found.duration_ns = has_gone_on ? std::min(elapsed_ns, kMaxGapNs) : elapsed_ns;
  found.quiet_ns = quiet_ns;
  return found;
}

void Drain::remove_busy(std::vector<QuietThread>& quiet) {
  const auto has_gone_on = [this](const QuietThread& found) {
    const Thread* const thread = find_thread(found.number);
    return thread == nullptr || !(progress_of(*thread->buffer) == thread->looks.progress);
  };
  quiet.erase(std::remove_if(quiet.begin(), quiet.end(), has_gone_on), quiet.end());
}

// C code that holds the GIL, json.loads for instance, may run for long until the thread's frames
// can be read. If the thread has recorded nothing meanwhile, that is the time of its function, too;
// else the sample has the moment of the look, at which the thread was at that position.
void Drain::add_sample(uint64_t thread_number, NewSample sample) {
  Thread* const thread = find_thread(thread_number);
  if (thread == nullptr) return;
  Looks& looks = thread->looks;
  looked_at_ = read_ticks(globals_.use_cycle_counter);
  if (progress_of(*thread->buffer).position == sample.position) {
    sample.duration_ns += nanoseconds(looked_at_ - looks.ticks);
    looks.ticks = looked_at_;
  }
  sample.ticks = looks.ticks;
  thread->samples.push_back(std::move(sample));
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
  placed.duration_ns = sample.duration_ns;
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
