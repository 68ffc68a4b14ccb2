// Reads one thread's ring, record by record, as record.hpp lays them out.
#include "drain/drain.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace recfn {
namespace {

// The column of each TextKind.
constexpr uint32_t SeldomRow::* kTexts[kRowTexts] = {
    &SeldomRow::module, &SeldomRow::shapes,     &SeldomRow::dtypes,
    &SeldomRow::stack,  &SeldomRow::code,       &SeldomRow::call_site,
    &SeldomRow::error,  &SeldomRow::stacktrace, &SeldomRow::attributes};

bool is_begin(uint64_t head) { return kind_of(head) == kBegin || kind_of(head) == kLongBegin; }

uint8_t source_of(uint64_t head) {
  return static_cast<uint8_t>((flags_of(head) & kSourceMask) >> kSourceShift);
}

}  // namespace

// Up to the first begin after `until_ticks`: it may lie in a range of a thread that was read
// before.
void Drain::read_thread(Thread& thread, uint64_t until_ticks) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint64_t end = buffer.published.load(std::memory_order_acquire);
  thread.ring_ends = 0;  // rings may have been added since
  for (uint64_t at = buffer.consumed.load(std::memory_order_relaxed); at < end;) {
    if (at >= thread.ring_ends) enter_ring(thread, at);
    if (is_begin(thread.word(at)) && thread.word(at + 1) > until_ticks) break;
    at = read_record(thread, at);
    buffer.consumed.store(at, std::memory_order_release);  // its thread may write over it
  }
  if (!remote_.empty()) close_remotely_ended(thread, UINT64_MAX);
}

// What stands at that position, and until where. Earlier rings have been read, and nobody writes
// them any more.
void Drain::enter_ring(Thread& thread, uint64_t at) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint32_t rings = buffer.num_rings.load(std::memory_order_acquire);
  uint32_t& ring = buffer.oldest_ring;
  while (ring + 1 < rings && buffer.rings[ring + 1].from <= at)
    unmap_ring(buffer.shared->total_bytes, buffer.rings[ring++]);
  thread.words = buffer.rings[ring].words;
  thread.mask = buffer.rings[ring].capacity - 1;
  thread.ring_ends = ring + 1 < rings ? buffer.rings[ring + 1].from : UINT64_MAX;
}

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

uint64_t Drain::read_other_record(Thread& thread, uint64_t head, uint64_t at) {
  const uint32_t payload = payload_of(head);
  switch (kind_of(head)) {
    case kMark:
    case kMemory:
      read_point(thread, head, at);
      return at + kPointWords;
    case kName:
      read_name(thread, head, at + 1);
      return at + 1 + words_of(payload);
    case kText:
      read_text(thread, head);
      return at + 1;
    case kContext:
      read_context(thread, at + 1);
      return at + kContextWords;
    case kShapes:
      read_shapes(thread, at + 1, payload);
      return at + 1 + payload;
    case kNumber:
      read_number(thread, head, thread.word(at + 1));
      return at + 2;
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

void Drain::read_name(Thread& thread, uint64_t head, uint64_t at) {
  const uint32_t size = payload_of(head);
  std::string name;
  for (uint32_t word = 0; word < words_of(size); ++word) {
    const uint64_t bytes = thread.word(at + word);
    name.append(reinterpret_cast<const char*>(&bytes),
                std::min<size_t>(8, size - size_t{word} * 8));
  }
  thread.dictionary[slot_of(head)] = names_.intern(name);
}

void Drain::read_text(Thread& thread, uint64_t head) {
  thread.fill_pending().*kTexts[scope_of(head)] = thread.dictionary[slot_of(head)];
}

void Drain::read_number(Thread& thread, uint64_t head, uint64_t number) {
  const uint64_t kind = scope_of(head);
  SeldomRow& row = thread.fill_pending();
  if (kind == kDebugHandle) row.debug_handle = static_cast<int64_t>(number);
#define RECFN_READ(type, name, empty) \
  if (kind == k_##name##_number) row.name = static_cast<type>(number);
  RECFN_RARE_NUMBERS(RECFN_READ)
  RECFN_END_NUMBERS(RECFN_READ)
#undef RECFN_READ
}

void Drain::read_context(Thread& thread, uint64_t at) {
  const Context context{
      thread.word(at), thread.word(at + 1), thread.word(at + 2), thread.word(at + 3), 0, 0};
  const bool known = contexts_[thread.context] == context;
  if (!known && !(context == Context{})) contexts_.push_back(context);
  if (!known)
    thread.context = context == Context{} ? 0 : static_cast<uint32_t>(contexts_.size() - 1);
  thread.enclosing = thread.word(at + 4), thread.root = thread.word(at + 5);
}

void Drain::read_shapes(Thread& thread, uint64_t at, uint32_t count) {
  std::vector<uint64_t> words(count);
  for (uint32_t index = 0; index < count; ++index) words[index] = thread.word(at + index);
  SeldomRow& row = thread.fill_pending();
  std::tie(row.shapes, row.dtypes, row.concrete_inputs) = names_.intern_shapes(words);
}

// What began before this recording belongs to nobody in it, whenever its record was written.
bool Drain::is_of_earlier(Thread& thread, uint64_t ticks) {
  if (thread.generation == globals_.generation.load()) return false;
  if (ticks <= earlier_ended_at_)
    count_discarded(1);  // else it was still on its way when its recording had ended
  begun(thread);
  return true;
}

// It is the thread's next one only when begun() says so.
[[gnu::always_inline]] inline Drain::Coming Drain::coming(Thread& thread, uint64_t head,
                                                          uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const uint64_t event_id = make_event_id(thread.buffer->number, thread.ordinal + 1);
  const bool base = (flags_of(head) & kBaseBegin) != 0;
  const OpenRange* around = range_around(thread, base);
  Coming one{ticks, event_id, clock_->monotonic_ns(ticks),
             0,     {},       around != nullptr && around->compiles};
  if (around != nullptr) {
    one.place = {around->row.event_id, around->row.root, around->row.context};
    one.offset_ns = around->row.offset_ns;
  } else {
    one.place = told_place(thread, base, event_id);
    one.offset_ns = clock_->offset_ns();
  }
  return one;
}

// What every begin and point has in common. The row is as it was made.
[[gnu::always_inline]] inline void Drain::fill(const Thread& thread, FullRow& row, uint64_t head,
                                               const Coming& one) const {
  row.seldom = thread.pending;
  row.event_id = row.handle = one.event_id;
  row.name = thread.dictionary[slot_of(head)];
  row.scope = static_cast<uint8_t>(scope_of(head));
  row.flags = flags_of(head) & kEventFlags;
  row.source = source_of(head);
  row.start_ns = one.start_ns, row.offset_ns = one.offset_ns;
  row.parent = one.place.parent, row.root = one.place.root, row.context = one.place.context;
  if (node_id_ != -1) row.fill_seldom().node_id = node_id_;
  if (thread.profiler != 0) row.fill_seldom().profiler = thread.profiler;
}

void Drain::begun(Thread& thread) {
  ++thread.ordinal;
  thread.parent_ordinal = 0;
  thread.pending.reset();
}

// Of a compilation, as PyTorch announces it itself.
bool Drain::is_phase(const Row& row) const {
  constexpr std::string_view suffix = " (dynamo_timed)";
  if (row.scope != kUserScope || row.source != kTorchSource) return false;
  const std::string_view name = names_.text(row.name);
  return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

void Drain::read_begin(Thread& thread, uint64_t head, uint64_t at) {
  if (is_of_earlier(thread, thread.word(at + 1))) return;
  const Coming one = coming(thread, head, thread.word(at + 1));
  const uint64_t caller = thread.open_calls == 0 ? 0 : innermost_call(thread);
  if (one.place.parent == 0) {
    out_.opened.add({one.event_id, thread.dictionary[slot_of(head)], source_of(head),
                     one.start_ns + one.offset_ns, thread.index, one.place.context,
                     flags_of(head) & kEventFlags});
  }
  OpenRange& range = thread.open.emplace_back(thread.ordinal + 1,
                                              one.event_id);  // filled where it stays: it is large
  FullRow& row = range.row;
  fill(thread, row, head, one);
  range.compiles = one.in_compilation || row.source == kCompilationSource || is_phase(row);
  // But for ranges of PyTorch's phases, and of the program's: it runs them to compile.
  if (one.in_compilation && (row.scope != kUserScope || row.source == kModuleSource))
    row.flags |= kInCompilation;
  row.forward_thread_id = payload_of(head);
  if (kind_of(head) == kLongBegin) {
    if (const uint64_t handle = thread.word(at + 2)) row.handle = handle;
    row.sequence_nr = static_cast<int64_t>(thread.word(at + 3));
    if (row.source == kTorchSource) range.key = row.handle;
  }
  if (caller != 0) row.fill_seldom().caller = caller;
  thread.open_calls += row.source == kPythonCallSource;
  begun(thread);
}

void Drain::read_point(Thread& thread, uint64_t head, uint64_t at) {
  if (is_of_earlier(thread, thread.word(at + 1))) return;
  FullRow row;
  fill(thread, row, head, coming(thread, head, thread.word(at + 1)));
  row.kind = kind_of(head) == kMark ? kMarkRow : kMemoryRow;
  row.source = kRecordFunctionSource;
  if (row.kind == kMemoryRow) {
    row.fill_seldom().device = std::exchange(row.name, names_.intern("[memory]"));
    row.fill_seldom().nbytes = static_cast<int64_t>(thread.word(at + 2));
  }
  end_row(row, row.start_ns, thread.index, thread.index);
  out_.rows.add(row);
  begun(thread);
}

void Drain::read_end(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const auto is_it = [ordinal = ordinal_of(head)](const OpenRange& open) {
    return open.ordinal == ordinal;
  };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), is_it);
  if (found != thread.open.rend()) {  // else it isn't open any more
    const std::optional<int64_t> cut_ns =
        found == thread.open.rbegin() ? std::nullopt : let_out(thread, *found);
    const bool crosses = found != thread.open.rbegin() && !cut_ns;
    const uint32_t flags =
        (end_flags_of(head) & (kEventFlags | kShown)) | (crosses ? uint32_t{kCrossing} : 0u);
    if (thread.pending) found->row.fill_seldom().add(*thread.pending);
    seal(thread, *found, cut_ns ? *cut_ns : clock_->monotonic_ns(ticks), flags, thread.index);
  }
  thread.pending.reset();
}

}  // namespace recfn
