// Reads one thread's ring, record by record, as record.hpp lays them out.
#include "drain/drain.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/thread_buffer.hpp"
#include "drain/node_ids.hpp"

namespace recfn {
namespace {

constexpr uint64_t kReleaseEveryWords = 16'384;

bool is_begin(uint64_t head) { return kind_of(head) == kBegin || kind_of(head) == kLongBegin; }

// Up to where a ring has been read. Its thread may write over that, which it is told now and then, and at the end.
struct Consumed {
  explicit Consumed(ThreadBuffer& its_buffer)
      : buffer(its_buffer), at(its_buffer.consumed.load(std::memory_order_relaxed)), released(at) {}
  Consumed(const Consumed&) = delete;
  Consumed& operator=(const Consumed&) = delete;
  ~Consumed() { buffer.consumed.store(at, std::memory_order_release); }

  void release() {
    if (at - released < kReleaseEveryWords) return;
    buffer.consumed.store(at, std::memory_order_release);
    released = at;
  }

  ThreadBuffer& buffer;
  uint64_t at, released;
};

uint8_t source_of(uint64_t head) { return static_cast<uint8_t>((flags_of(head) & kSourceMask) >> kSourceShift); }

}  // namespace

// Returns where the next record begins.
inline uint64_t Drain::read_record(Thread& thread, uint64_t at) {
  const uint64_t head = thread.word(at);
  switch (kind_of(head)) {
    case kBegin:
      read_begin(thread, head, at);
      return at + kBeginWords;
    case kLongBegin:
      read_begin(thread, head, at);
      return at + kLongBeginWords;
    case kEnd:
      read_end(thread, head, thread.word(at + 1));
      return at + kEndWords;
    default:
      return read_other_record(thread, head, at);
  }
}

// Up to the first begin after `until_ticks`: it may lie in a range of a thread that was read before.
void Drain::read_thread(Thread& thread, uint64_t until_ticks) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint64_t end = buffer.published.load(std::memory_order_acquire);
  thread.ring_ends = 0;  // rings may have been added since
  for (Consumed read(buffer); read.at < end;) {
    if (read.at >= thread.ring_ends) enter_ring(thread, read.at);
    if (is_begin(thread.word(read.at)) && thread.word(read.at + 1) > until_ticks) break;
    read.at = read_record(thread, read.at);
    read.release();
  }
  if (!remote_.empty()) close_remotely_ended(thread, UINT64_MAX);
}

// What stands at that position, and until where. Earlier rings have been read, and nobody writes them any more.
void Drain::enter_ring(Thread& thread, uint64_t at) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint32_t rings = buffer.num_rings.load(std::memory_order_acquire);
  uint32_t& ring = buffer.oldest_ring;
  while (ring + 1 < rings && buffer.rings[ring + 1].from <= at) unmap_ring(buffer.rings[ring++], buffer.shared->total_bytes);
  thread.words = buffer.rings[ring].words;
  thread.mask = buffer.rings[ring].capacity - 1;
  thread.ring_ends = ring + 1 < rings ? buffer.rings[ring + 1].from : UINT64_MAX;
}

uint64_t Drain::read_other_record(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
  const uint32_t payload = payload_of(head);
  switch (kind_of(head)) {
    case kMark:
      read_point(thread, head, at);
      return at + kMarkWords;
    case kMemory:
      read_point(thread, head, at);
      return at + kMemoryWords;
    case kName:
      thread.dictionary[slot_of(head)] = names_.intern(read_text(thread, at + 1, payload));
      return at + 1 + words_of(payload);
    case kText:
      read_text_record(thread, head, at);
      return at + 1 + words_of(payload);
    case kContext:
      read_context(thread, at + 1);
      return at + kContextWords;
    case kDebugHandle:
      pending(thread).fill_seldom().debug_handle = static_cast<int64_t>(word(at + 1));
      return at + 2;
    case kShapes:
      read_shapes(thread, at + 1, payload);
      return at + 1 + payload;
    case kNumber:
      read_number(thread, head, static_cast<int64_t>(word(at + 1)));
      return at + 2;
    case kStack:
      read_stack(thread, head);
      return at + 1;
    case kParent:
      thread.parent_ordinal = ordinal_of(head);
      return at + 1;
    case kGeneration:
      thread.generation = payload;
      return at + 1;
    case kProfiler:
      thread.profiler = payload;
      return at + 1;
    default:  // unreachable while record.hpp and begin_end.hpp agree
      return thread.buffer->published.load(std::memory_order_acquire);
  }
}

std::string Drain::read_text(const Thread& thread, uint64_t at, uint32_t bytes) const {
  std::string text(words_of(bytes) * size_t{8}, '\0');
  for (uint32_t index = 0; index < words_of(bytes); ++index) {
    const uint64_t word = thread.word(at + index);
    std::memcpy(&text[index * size_t{8}], &word, 8);
  }
  text.resize(bytes);
  return text;
}

void Drain::read_context(Thread& thread, uint64_t at) {
  uint64_t words[6];
  for (uint64_t index = 0; index < 6; ++index) words[index] = thread.word(at + index);
  Context context{words[0], words[1], words[2], words[3], 0, 0};
  const bool known = contexts_[thread.context] == context;
  if (!known && !(context == Context{})) contexts_.push_back(context);
  if (!known) thread.context = context == Context{} ? 0 : static_cast<uint32_t>(contexts_.size() - 1);
  thread.enclosing = words[4], thread.root = words[5];
}

void Drain::read_shapes(Thread& thread, uint64_t at, uint32_t count) {
  std::vector<uint64_t> words(count);
  for (uint32_t index = 0; index < count; ++index) words[index] = thread.word(at + index);
  SeldomRow& row = pending(thread).fill_seldom();
  std::tie(row.shapes, row.dtypes, row.concrete_inputs) = names_.intern_shapes(words);
}

void Drain::read_number(Thread& thread, uint64_t head, int64_t number) {
  SeldomRow& row = pending(thread).fill_seldom();
  (scope_of(head) == kStepNumber ? row.step_number : row.flops) = number;
}

void Drain::read_stack(Thread& thread, uint64_t head) {
  const uint32_t text = thread.dictionary[slot_of(head)];
  switch (scope_of(head)) {
    case kCallStack:
      pending(thread).fill_seldom().stack = text;
      return;
    case kStacktrace:
      thread.left_by.stacktrace = text;
      return;
    case kCalledCode:
      pending(thread).fill_seldom().code = text;
      return;
    case kCallSite:
      pending(thread).fill_seldom().call_site = text;
      return;
    default:
      return read_code_of_open(thread, head);
  }
}

void Drain::read_code_of_open(Thread& thread, uint64_t head) {
  for (auto range = thread.open.rbegin(); range != thread.open.rend(); ++range) {
    if (static_cast<uint32_t>(range->ordinal) != payload_of(head)) continue;
    if (range->row.source != kTorchSource) return;
    SeldomRow& row = range->row.fill_seldom();
    if (row.code == 0) row.code = thread.dictionary[slot_of(head)];
    return;
  }
}

void Drain::read_text_record(Thread& thread, uint64_t head, uint64_t at) {
  const uint32_t name = names_.intern(read_text(thread, at + 1, payload_of(head)));
  text(thread, scope_of(head)) = name;
}

uint32_t& Drain::text(Thread& thread, uint32_t kind) {
  switch (kind) {
    case kModuleText:
      return pending(thread).module;
    case kErrorText:
      return thread.left_by.error;
    case kShapesText:
      return pending(thread).fill_seldom().shapes;
    case kDtypesText:
      return pending(thread).fill_seldom().dtypes;
    case kConcreteText:
      return pending(thread).fill_seldom().concrete_inputs;
    default:
      return pending(thread).fill_seldom().words;
  }
}

// It is the thread's next one only when begun() says so.
[[gnu::always_inline]] inline Drain::Coming Drain::coming(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const uint64_t event_id = make_event_id(thread.buffer->number, thread.ordinal + 1);
  const int64_t start_ns = clock_.monotonic_ns(ticks);
  const bool base = (flags_of(head) & kBaseBegin) != 0;
  const OpenRange* around = range_around(thread, base);
  Coming one{ticks, event_id, start_ns, 0, {}};
  if (around != nullptr) {
    one.place = {around->row.event_id, around->row.root, around->row.context};
    one.offset_ns = around->row.offset_ns;
  } else {
    one.place = told_place(thread, base, event_id);
    one.offset_ns = offset_of(thread, one.place.parent, start_ns);
  }
  return one;
}

// What every begin and point has in common. The row is as it was made.
[[gnu::always_inline]] inline void Drain::fill(const Thread& thread, FullRow& row, uint64_t head, const Coming& one) const {
  if (thread.has_pending) row = thread.pending;
  row.event_id = row.handle = one.event_id;
  row.name = thread.dictionary[slot_of(head)];
  row.scope = static_cast<uint8_t>(scope_of(head));
  row.flags = flags_of(head) & kEventFlags;
  row.source = source_of(head);
  row.start_ns = one.start_ns, row.offset_ns = one.offset_ns;
  row.parent = one.place.parent, row.root = one.place.root, row.context = one.place.context;
  if (const int64_t node_id = node_ids_.at(one.ticks); node_id != SeldomRow{}.node_id) row.fill_seldom().node_id = node_id;
  if (thread.profiler != 0) row.fill_seldom().profiler = thread.profiler;
}

void Drain::begun(Thread& thread) {
  ++thread.ordinal;
  thread.parent_ordinal = 0;
  thread.left_by = {};
  if (!thread.has_pending) return;
  thread.pending = FullRow{};
  thread.has_pending = false;
}

FullRow& Drain::pending(Thread& thread) {
  thread.has_pending = true;
  return thread.pending;
}

// What began before this recording belongs to nobody in it, whenever its record was written.
bool Drain::is_of_earlier(const Thread& thread) const { return thread.generation != globals_.generation.load(); }

void Drain::pass_over(Thread& thread, uint64_t ticks) {
  if (ticks <= earlier_ended_at_) count_discarded(1);  // else it was still on its way when its recording had ended
  begun(thread);
}

void Drain::read_begin(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
  if (is_of_earlier(thread)) return pass_over(thread, word(at + 1));
  const Coming one = coming(thread, head, word(at + 1));
  const uint64_t caller = thread.open_calls == 0 ? 0 : innermost_call(thread);
  if (one.place.parent == 0) announce(thread, head, one);
  if (one.offset_ns != clock_.offset_ns()) other_offsets_.insert_or_assign(one.event_id, one.offset_ns);
  thread.offsets.passed(one.start_ns + one.offset_ns);
  OpenRange& range = thread.open.emplace_back(thread.ordinal + 1, one.event_id);  // filled where it stays: it is large
  FullRow& row = range.row;
  fill(thread, row, head, one);
  row.forward_thread_id = payload_of(head);
  if (kind_of(head) == kLongBegin) {
    if (const uint64_t handle = word(at + 2)) row.handle = handle;
    row.sequence_nr = static_cast<int64_t>(word(at + 3));
    if (row.source == kTorchSource) range.key = row.handle;
  }
  if (caller != 0) row.fill_seldom().caller = caller;
  thread.open_calls += row.source == kPythonCallSource;
  begun(thread);
}

void Drain::announce(const Thread& thread, uint64_t head, const Coming& one) {
  out_.opened.add({one.event_id, thread.dictionary[slot_of(head)], source_of(head), one.start_ns + one.offset_ns, thread.index,
                   one.place.context, flags_of(head) & kEventFlags});
}

void Drain::read_point(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
  if (is_of_earlier(thread)) return pass_over(thread, word(at + 1));
  const Coming one = coming(thread, head, word(at + 1));
  FullRow row;
  fill(thread, row, head, one);
  row.kind = kind_of(head) == kMark ? kMarkEvent : kMemoryEvent;
  row.source = kRecordFunctionSource;
  if (row.kind == kMemoryEvent) {
    row.fill_seldom().device = std::exchange(row.name, names_.intern("[memory]"));
    row.fill_seldom().nbytes = static_cast<int64_t>(word(at + 2));
  }
  end_row(row, row.start_ns, thread.index, thread.index);
  out_.rows.add(row);
  thread.offsets.passed(one.start_ns + one.offset_ns);
  begun(thread);
}

// Null where it isn't open any more.
inline Drain::OpenRange* Drain::find_open(Thread& thread, uint64_t ordinal) {
  const auto is_it = [ordinal](const OpenRange& open) { return open.ordinal == ordinal; };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), is_it);
  return found == thread.open.rend() ? nullptr : &*found;
}

void Drain::read_end(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  OpenRange* open = find_open(thread, ordinal_of(head));
  if (open != nullptr) {
    const bool innermost = open == &thread.open.back();
    std::optional<int64_t> cut_ns;
    if (!innermost) cut_ns = let_out(thread, *open);
    const bool crosses = !innermost && !cut_ns;
    const uint32_t flags = crossing_if(crosses, open->row, end_flags_of(head) & (kEventFlags | kShown));
    seal(thread, *open, cut_ns ? *cut_ns : clock_.monotonic_ns(ticks), flags, thread.left_by, thread.index);
  }
  thread.left_by = {};
}

}  // namespace recfn
