// Reads one thread's ring, record by record, as record.hpp lays them out.
#include "drain/drain.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "core/ring_growth.hpp"
#include "drain/node_ids.hpp"

namespace recfn {
namespace {

constexpr uint64_t kReleaseEveryWords = 16'384;

bool is_begin(uint64_t head) { return kind_of(head) == kBegin || kind_of(head) == kLongBegin; }

}  // namespace

// Up to the first begin after `until_ticks`: it may lie in a range of a thread that was read before.
void Drain::read_thread(Thread& thread, uint64_t until_ticks) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint64_t end = buffer.published.load(std::memory_order_acquire);
  uint64_t at = buffer.consumed.load(std::memory_order_relaxed);
  thread.ring_ends = 0;  // rings may have been added since
  try {
    for (uint64_t released = at; at < end;) {
      if (at >= thread.ring_ends) enter_ring(thread, at);
      if (is_begin(thread.word(at)) && thread.word(at + 1) > until_ticks) break;
      at = read_record(thread, at);
      if (at - released < kReleaseEveryWords) continue;
      buffer.consumed.store(at, std::memory_order_release);
      released = at;
    }
  } catch (const std::bad_alloc&) {
    buffer.consumed.store(at, std::memory_order_release);
    throw;
  }
  buffer.consumed.store(at, std::memory_order_release);
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

// Returns where the next record begins.
uint64_t Drain::read_record(Thread& thread, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
  const uint64_t head = word(at);
  const uint32_t payload = payload_of(head);
  switch (kind_of(head)) {
    case kBegin:
      read_begin(thread, head, at);
      return at + kBeginWords;
    case kLongBegin:
      read_begin(thread, head, at);
      return at + kLongBeginWords;
    case kMark:
      read_point(thread, head, at);
      return at + kMarkWords;
    case kMemory:
      read_point(thread, head, at);
      return at + kMemoryWords;
    case kEnd:
      read_end(thread, head, word(at + 1));
      return at + kEndWords;
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
      pending(thread).debug_handle = static_cast<int64_t>(word(at + 1));
      return at + 2;
    case kShapes:
      read_shapes(thread, at + 1, payload);
      return at + 1 + payload;
    case kNumber:
      (scope_of(head) == kStepNumber ? pending(thread).step_number : pending(thread).flops) = static_cast<int64_t>(word(at + 1));
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
  Row& row = pending(thread);
  std::tie(row.shapes, row.dtypes, row.concrete_inputs) = names_.intern_shapes(words);
}

void Drain::read_stack(Thread& thread, uint64_t head) {
  if (scope_of(head) == kCodeOfOpen) return read_code_of_open(thread, head);
  Row& row = pending(thread);
  uint32_t* const kinds[] = {&row.stack, &row.stacktrace, &row.code};
  *kinds[scope_of(head)] = thread.dictionary[slot_of(head)];
}

void Drain::read_code_of_open(Thread& thread, uint64_t head) {
  for (auto range = thread.open.rbegin(); range != thread.open.rend(); ++range) {
    if (static_cast<uint32_t>(range->ordinal) != payload_of(head)) continue;
    if (range->row.source == kTorchSource && range->row.code == 0) range->row.code = thread.dictionary[slot_of(head)];
    return;
  }
}

void Drain::read_text_record(Thread& thread, uint64_t head, uint64_t at) {
  Row& row = pending(thread);
  uint32_t* const kinds[] = {&row.module, &row.error, &row.shapes, &row.dtypes, &row.concrete_inputs, &row.words};
  *kinds[scope_of(head)] = names_.intern(read_text(thread, at + 1, payload_of(head)));
}

// Room for one more, so that the next push_back cannot fail.
template <typename Item>
void make_room(std::vector<Item>& items) {
  if (items.size() == items.capacity()) items.reserve(std::max<size_t>(16, 2 * items.size()));
}

// What every begin and point has in common. It is the thread's next one only when begun() says so: until then memory may run out.
Drain::OpenRange Drain::next_range(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  make_room(thread.open), make_room(out_.opened), make_room(out_.rows);
  OpenRange range{thread.pending, thread.ordinal + 1, 0};
  Row& row = range.row;
  row.error = row.stacktrace = 0;
  row.event_id = make_event_id(thread.buffer->number, range.ordinal);
  row.name = thread.dictionary[slot_of(head)];
  row.scope = static_cast<uint8_t>(scope_of(head));
  row.flags = flags_of(head) & kEventFlags;
  row.source = static_cast<uint8_t>((flags_of(head) & kSourceMask) >> kSourceShift);
  row.start_ns = clock_.monotonic_ns(ticks);
  row.node_id = node_ids().at(ticks);
  row.handle = range.key = row.event_id;
  row.profiler = thread.profiler;
  return range;
}

void Drain::begun(Thread& thread) {
  ++thread.ordinal;
  thread.parent_ordinal = 0;
  if (!thread.has_pending) return;
  thread.pending = Row{};
  thread.has_pending = false;
}

Row& Drain::pending(Thread& thread) {
  thread.has_pending = true;
  return thread.pending;
}

// What began before this recording belongs to nobody in it, whenever its record was written.
bool Drain::is_of_earlier(const Thread& thread) const { return thread.generation != globals().generation.load(); }

void Drain::pass_over(Thread& thread, uint64_t ticks) {
  (ticks > earlier_ended_at_ ? too_late_ : discarded_).fetch_add(1, std::memory_order_relaxed);
  begun(thread);
}

void Drain::read_begin(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
  if (is_of_earlier(thread)) return pass_over(thread, word(at + 1));
  OpenRange range = next_range(thread, head, word(at + 1));
  Row& row = range.row;
  row.forward_thread_id = payload_of(head);
  if (kind_of(head) == kLongBegin) {
    if (const uint64_t handle = word(at + 2)) row.handle = handle;
    row.sequence_nr = static_cast<int64_t>(word(at + 3));
    if (row.source == kTorchSource) range.key = row.handle;
  }
  place(thread, range, (flags_of(head) & kBaseBegin) != 0);
  row.caller = innermost_call(thread);
  thread.open.push_back(range);
  thread.open_calls += row.source == kPythonCallSource;
  begun(thread);
}

void Drain::read_point(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
  if (is_of_earlier(thread)) return pass_over(thread, word(at + 1));
  OpenRange point = next_range(thread, head, word(at + 1));
  Row& row = point.row;
  row.kind = kind_of(head) == kMark ? kMarkEvent : kMemoryEvent;
  row.source = kRecordFunctionSource;
  if (row.kind == kMemoryEvent) {
    row.device = std::exchange(row.name, names_.intern("[memory]"));
    row.nbytes = static_cast<int64_t>(word(at + 2));
  }
  place(thread, point, (flags_of(head) & kBaseBegin) != 0);
  end_row(add_row(row), row.start_ns, thread.index, thread.index);
  begun(thread);
}

void Drain::read_end(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const uint64_t ordinal = ordinal_of(head);
  for (size_t index = thread.open.size(); index-- > 0;) {
    if (thread.open[index].ordinal != ordinal) continue;
    make_room(out_.rows);  // where memory ends here, nothing has moved yet
    const std::optional<int64_t> cut_ns = let_out(thread, index);
    const bool crosses = !cut_ns && index + 1 != thread.open.size();
    const uint32_t flags = crossing_if(crosses, thread.open[index].row, end_flags_of(head) & (kEventFlags | kShown));
    const LeftBy left_by{thread.pending.error, thread.pending.stacktrace};
    seal(thread, index, cut_ns.value_or(clock_.monotonic_ns(ticks)), flags, left_by, thread.index);
    break;
  }
  thread.pending.error = thread.pending.stacktrace = 0;
}

}  // namespace recfn
