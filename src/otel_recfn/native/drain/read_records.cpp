// Reads one thread's ring, record by record, as record.hpp lays them out.
//
//   record                     what it changes
//   -------------------------  ----------------------------------------------------------------
//   Name                       a slot of the thread's dictionary, which later records name
//   Text, Number, Shapes       the columns that the next begin or end fills: `pending`
//   Context, Epoch, Profiler   what each begin has from here on
//   Parent                     what the next begin lies in
//   Begin, LongBegin           the ordinal; a range is open, whose row is filled but for its end
//   Mark, Memory               the ordinal; a row
//   End                        the open range with that ordinal becomes a row
#include "drain/drain.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

namespace recfn {
namespace {

// The column of each TextKind.
constexpr uint32_t OptionalFields::* kTexts[kRowTexts] = {
    &OptionalFields::module,    &OptionalFields::shapes,     &OptionalFields::dtypes,
    &OptionalFields::stack,     &OptionalFields::code,       &OptionalFields::call_site,
    &OptionalFields::error,     &OptionalFields::stacktrace, &OptionalFields::attributes,
    &OptionalFields::generation};

bool is_begin(uint64_t head) { return kind_of(head) == kBegin || kind_of(head) == kLongBegin; }

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

// The length of a record.
uint32_t words_in(uint64_t head) {
  switch (kind_of(head)) {
    case kBegin:
      return kBeginWords;
    case kLongBegin:
      return kLongBeginWords;
    case kEnd:
      return kEndWords;
    case kMark:
    case kMemory:
      return kPointWords;
    case kName:
      return 1 + words_of(payload_of(head));
    case kContext:
      return kContextWords;
    case kShapes:
      return 1 + payload_of(head);
    case kNumber:
      return 2;
    default:
      return 1;
  }
}

uint8_t source_of(uint64_t head) {
  return static_cast<uint8_t>((flags_of(head) & kSourceMask) >> kSourceShift);
}

}  // namespace

// Up to the first begin after `until_ticks`: it may lie in a range of a thread that was read
// before.
void Drain::read_thread(Thread& thread, uint64_t until_ticks) {
  ThreadBuffer& buffer = *thread.buffer;
  // Acquire, for the release with which the thread publishes: the words up to there are written.
  const uint64_t end = buffer.reading.published.load(std::memory_order_acquire);
  thread.ring_ends = 0;  // rings may have been added since
  uint64_t position = buffer.reading.consumed.load(std::memory_order_relaxed);
  size_t placed = 0;
  for (const NewSample& sample : thread.samples) {
    if (sample.position > end) break;
    position = read_until(thread, position, sample.position, until_ticks);
    if (position < sample.position) break;
    // Else records behind it were read before it came.
    if (position == sample.position) place(thread, sample);
    ++placed;
  }
  thread.samples.erase(thread.samples.begin(),
                       thread.samples.begin() + static_cast<std::ptrdiff_t>(placed));
  read_until(thread, position, end, until_ticks);
  if (!remote_.empty()) close_remotely_ended(thread, UINT64_MAX);
}

// Returns the position up to which records are read now.
uint64_t Drain::read_until(Thread& thread, uint64_t position, uint64_t end, uint64_t until_ticks) {
  while (position < end) {
    if (position >= thread.ring_ends) enter_ring(thread, position);
    if (is_begin(thread.word(position)) && thread.word(position + 1) > until_ticks) break;
    position = read_record(thread, position);
    // Release: the thread may write over what is read. After each record and not at the end, so
    // that a thread whose ring is full gets room while the rest is read.
    thread.buffer->reading.consumed.store(position, std::memory_order_release);
  }
  return position;
}

// What stands at that position, and until where. Earlier rings have been read, and nobody writes
// them any more.
void Drain::enter_ring(Thread& thread, uint64_t position) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint32_t rings = buffer.reading.num_rings.load(std::memory_order_acquire);
  uint32_t& ring = buffer.reading.oldest_ring;
  while (ring + 1 < rings && buffer.reading.rings[ring + 1].from <= position) {
    unmap_ring(buffer.growth.shared->total_bytes, buffer.reading.rings[ring]);
    ++ring;
  }
  thread.words = buffer.reading.rings[ring].words;
  thread.mask = buffer.reading.rings[ring].capacity - 1;
  thread.ring_ends = ring + 1 < rings ? buffer.reading.rings[ring + 1].from : UINT64_MAX;
}

// Returns where the next record begins.
inline uint64_t Drain::read_record(Thread& thread, uint64_t position) {
  const uint64_t head = thread.word(position);
  switch (kind_of(head)) {
    case kBegin:
      read_begin(thread, head, thread.word(position + 1), position);
      return position + kBeginWords;
    case kLongBegin:
      read_begin(thread, head, thread.word(position + 1), position);
      return position + kLongBeginWords;
    case kEnd:
      read_end(thread, head, thread.word(position + 1));
      return position + kEndWords;
    default:
      return read_other_record(thread, head, position);
  }
}

uint64_t Drain::read_other_record(Thread& thread, uint64_t head, uint64_t position) {
  const uint32_t payload = payload_of(head);
  switch (kind_of(head)) {
    case kMark:
    case kMemory:
      read_point(thread, head, position);
      return position + kPointWords;
    case kName:
      read_name(thread, head, position);
      return position + 1 + words_of(payload);
    case kText:
      read_text(thread, head);
      return position + 1;
    case kContext:
      read_context(thread, position + 1);
      return position + kContextWords;
    case kShapes:
      read_shapes(thread, position + 1, payload);
      return position + 1 + payload;
    case kNumber:
      read_number(thread, head, thread.word(position + 1));
      return position + 2;
    case kParent:
      thread.parent_ordinal = ordinal_of(head);
      return position + 1;
    case kEpoch:
      thread.epoch = payload;
      return position + 1;
    case kProfiler:
      thread.profiler = payload;
      return position + 1;
    default:  // unreachable while record.hpp and begin_end.hpp agree
      return thread.buffer->reading.published.load(std::memory_order_acquire);
  }
}

// The text of the name record at that position.
std::string Drain::name_at(const Thread& thread, uint64_t position) {
  const uint32_t size = payload_of(thread.word(position));
  std::string name;
  for (uint32_t word = 0; word < words_of(size); ++word) {
    const uint64_t bytes = thread.word(position + 1 + word);
    name.append(reinterpret_cast<const char*>(&bytes),
                std::min<size_t>(8, size - size_t{word} * 8));
  }
  return name;
}

void Drain::read_name(Thread& thread, uint64_t head, uint64_t position) {
  thread.dictionary[slot_of(head)] = names_.intern(name_at(thread, position));
}

void Drain::read_text(Thread& thread, uint64_t head) {
  thread.fill_pending().*kTexts[scope_of(head)] = thread.dictionary[slot_of(head)];
}

void Drain::read_number(Thread& thread, uint64_t head, uint64_t number) {
  const uint64_t kind = scope_of(head);
  OptionalFields& row = thread.fill_pending();
  if (kind == kDebugHandle) row.debug_handle = static_cast<int64_t>(number);
#define RECFN_READ(type, name, empty) \
  if (kind == k_##name##_number) row.name = static_cast<type>(number);
  RECFN_PRELUDE_NUMBERS(RECFN_READ)
  RECFN_END_NUMBERS(RECFN_READ)
#undef RECFN_READ
}

void Drain::read_context(Thread& thread, uint64_t position) {
  const Context context{thread.word(position),
                        thread.word(position + 1),
                        thread.word(position + 2),
                        thread.word(position + 3),
                        0,
                        0};
  const bool known = contexts_[thread.context] == context;
  if (!known && !(context == Context{})) contexts_.push_back(context);
  if (!known) {
    thread.context = context == Context{} ? 0 : static_cast<uint32_t>(contexts_.size() - 1);
  }
  thread.enclosing = thread.word(position + 4);
  thread.root = thread.word(position + 5);
}

void Drain::read_shapes(Thread& thread, uint64_t position, uint32_t count) {
  std::vector<uint64_t> words(count);
  for (uint32_t index = 0; index < count; ++index) words[index] = thread.word(position + index);
  OptionalFields& row = thread.fill_pending();
  std::tie(row.shapes, row.dtypes, row.concrete_inputs) = names_.intern_shapes(words);
}

// What began before this recording belongs to nobody in it, whenever its record was written.
bool Drain::is_from_earlier(Thread& thread, uint64_t ticks) {
  if (thread.epoch == globals_.epoch.load()) return false;
  if (ticks <= earlier_ended_at_ && thread.ordinal >= thread.last_discarded) {
    // Else it was still on its way when its recording had ended, or is counted.
    count_discarded(1);
  }
  count_begin(thread);
  return true;
}

// The handle of a range that its source gave none.
inline uint64_t Drain::handle_of(uint64_t event_id) {
  return event_id < kFirstCountedHandle ? event_id : next_handle_++;
}

// What every begin and point has in common, but for its parents. The row is as it was made. It is
// the thread's next one only when count_begin() says so.
[[gnu::always_inline]] inline void Drain::fill(const Thread& thread, FullRow& row, uint64_t head,
                                               uint64_t ticks) {
  // Else all of it would be copied, which is more than the rest of the row.
  if (thread.pending) row.optional_fields = thread.pending;
  row.event_id = make_event_id(thread.buffer->number, thread.ordinal + 1);
  row.handle = handle_of(row.event_id);
  row.name = thread.dictionary[slot_of(head)];
  row.scope = static_cast<uint8_t>(scope_of(head));
  row.flags = flags_of(head) & kEventFlags;
  row.source = source_of(head);
  row.start_ns = clock_->monotonic_ns(ticks);
  const int64_t node_id = node_ids_.at(ticks);
  if (node_id != -1) row.fill_optional().node_id = node_id;
  if (thread.profiler != 0) row.fill_optional().profiler = thread.profiler;
}

// Fills the parents of a begin or point, and the offset of its times. Around it may be the open
// ranges before `end`: returns the one in which it lies by its place in the thread, null where
// records say what it lies in.
[[gnu::always_inline]] inline const Drain::OpenRange* Drain::fill_parents(
    Thread& thread, FullRow& row, uint64_t head, uint64_t ticks, const OpenRange* end) const {
  const bool base = (flags_of(head) & kBaseBegin) != 0;
  const OpenRange* const innermost_open = innermost(thread, end);
  if (innermost_open != nullptr && !base && thread.parent_ordinal == 0) {
    row.parent = innermost_open->row.event_id;
    row.root = innermost_open->row.root;
    row.context = innermost_open->row.context;
    row.offset_ns = innermost_open->row.offset_ns;
    return innermost_open;
  }
  const Parents parents = recorded_parents(thread, base, row.event_id);
  row.parent = parents.parent;
  row.root = parents.root;
  row.context = parents.context;
  row.offset_ns = clock_->offset_ns(ticks);
  if (row.parent != (innermost_open != nullptr ? innermost_open->row.event_id : 0)) {
    row.flags |= kParentElsewhere;
  }
  return nullptr;
}

void Drain::count_begin(Thread& thread) {
  ++thread.ordinal;
  thread.parent_ordinal = 0;
  thread.pending.reset();
}

// Of a compilation, as PyTorch announces it itself; asked for ranges of the user scope.
bool Drain::is_phase(const Row& row) const {
  constexpr std::string_view suffix = " (dynamo_timed)";
  if (row.source != kTorchSource) return false;
  const std::string_view name = names_.text(row.name);
  return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

inline void Drain::note_compilation(OpenRange& range, bool in_compilation) const {
  Row& row = range.row;
  range.compiles = in_compilation || row.source == kCompilationSource ||
                   (row.scope == kUserScope && is_phase(row));
  // But for ranges of PyTorch's phases, and of the program's: it runs them to compile.
  if (in_compilation && (row.scope != kUserScope || row.source == kModuleSource)) {
    row.flags |= kInCompilation;
  }
}

void Drain::read_begin(Thread& thread, uint64_t head, uint64_t ticks, uint64_t position) {
  if (is_from_earlier(thread, ticks)) return;
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const uint64_t caller = thread.open_calls == 0 ? 0 : innermost_call(thread);
  // Filled where it stays: it is large.
  OpenRange& range = thread.open.emplace_back();
  FullRow& row = range.row;
  fill(thread, row, head, ticks);
  const OpenRange* const enclosing_range = fill_parents(thread, row, head, ticks, &range);
  const bool is_root = row.root == row.event_id;
  note_compilation(range, enclosing_range != nullptr && enclosing_range->compiles);
  row.forward_thread_id = payload_of(head);
  if (row.forward_thread_id != 0 && row.source == kTorchSource) {
    row.forward_thread_id = registry().logical_id_of(row.forward_thread_id);
  }
  range.key = row.event_id;
  if (row.source == kModuleSource) note_enclosing_module(thread, row);
  if (kind_of(head) == kLongBegin) {
    if (const uint64_t handle = thread.word(position + 2)) row.handle = handle;
    row.sequence_nr = static_cast<int64_t>(thread.word(position + 3));
    if (row.source == kTorchSource) range.key = row.handle;
  }
  if (caller != 0) row.fill_optional().caller = caller;
  if (row.scope == kBackwardFunctionScope) number_enclosing_range(thread);
  thread.open_calls += row.source == kPythonCallSource;
  range.is_outermost =
      enclosing_range == nullptr
          ? is_root
          : enclosing_range->is_outermost && enclosing_range->row.source == kPythonCallSource;
  if (range.is_outermost || row.scope == kUserScope) note_training(thread, range, position);
  if (is_root) {
    out_.opened.add({row.event_id, row.name, row.source, row.start_ns + row.offset_ns, thread.index,
                     row.context, row.flags});
  }
  thread.last_ns = row.start_ns + row.offset_ns;
  count_begin(thread);
}

// A module's call has the path of the one around it, by which its own is shortened.
void Drain::note_enclosing_module(Thread& thread, FullRow& row) {
  if (!row.optional_fields || row.optional_fields->module == 0) return;
  const OpenRange* enclosing = find_open(thread, row.parent);
  while (enclosing != nullptr && enclosing->row.source != kModuleSource) {
    enclosing = find_open(thread, enclosing->row.parent);
  }
  if (enclosing == nullptr || !enclosing->row.optional_fields) return;
  row.optional_fields->enclosing_module = enclosing->row.optional_fields->module;
}

// Autograd runs a backward node, which has begun now, in a range that PyTorch gives no numbers. It
// has the node's, as in torch.profiler's traces.
void Drain::number_enclosing_range(Thread& thread) const {
  const Row& node = thread.open.back().row;
  if (node.sequence_nr == -1 || thread.open.size() < 2) return;
  Row& enclosing_range = thread.open[thread.open.size() - 2].row;
  if (enclosing_range.event_id != node.parent || enclosing_range.sequence_nr != -1) return;
  if (!starts_with(names_.text(enclosing_range.name), kNodesPrefix)) return;
  enclosing_range.sequence_nr = node.sequence_nr;
  enclosing_range.forward_thread_id = node.forward_thread_id;
}

// What a range, which is the innermost one, says of training. Whatever spans are in between, a step
// of the program's around it leaves none to be found.
Work Drain::work_of(const Thread& thread, const Row& row) const {
  if (row.scope != kUserScope) return Work::kAny;
  if (row.source == kModuleSource) {
    return (row.flags & kEvaluation) != 0 ? Work::kEvaluation : Work::kTraining;
  }
  if (row.source == kStepSource) return Work::kStep;
  const std::string_view name = names_.text(row.name);
  if (!starts_with(name, kOptimizer)) return Work::kAny;
  if (!starts_with(name, kOptimizerStep)) return Work::kOptimizerWork;
  bool is_marked = false;
  for (const OpenRange& enclosing_range : thread.open) {
    if (enclosing_range.row.source == kStepSource) return Work::kAny;
    is_marked = is_marked || starts_with(names_.text(enclosing_range.row.name), kProfilerStep);
  }
  return is_marked ? Work::kMarkedOptimizer : Work::kOptimizer;
}

// Whether an optimizer steps in the thread before a module is called or a `step` begins, as far as
// it has recorded since the record at that position. Nothing is read.
bool Drain::optimizer_comes(const Thread& thread, uint64_t position) const {
  const uint64_t end =
      std::min(thread.buffer->reading.published.load(std::memory_order_acquire), thread.ring_ends);
  std::unordered_map<uint32_t, bool> renamed;  // slots: whether the name is an optimizer's step's
  const auto is_step = [&](uint32_t slot) {
    const auto found = renamed.find(slot);
    if (found != renamed.end()) return found->second;
    return starts_with(names_.text(thread.dictionary[slot]), kOptimizerStep);
  };
  while (position < end) {
    const uint64_t head = thread.word(position);
    if (kind_of(head) == kName) {
      renamed[slot_of(head)] = starts_with(name_at(thread, position), kOptimizerStep);
    }
    if (is_begin(head) && scope_of(head) == kUserScope) {
      const uint8_t source = source_of(head);
      if (source == kModuleSource || source == kStepSource) return false;
      if (is_step(slot_of(head))) return true;
    }
    position += words_in(head);
  }
  return false;
}

// Notes the begin of a range, whose record is at that position, for the training steps of its
// thread.
void Drain::note_training(Thread& thread, OpenRange& range, uint64_t position) {
  FullRow& row = range.row;
  if (row.source == kPythonCallSource) return;
  const Work work = work_of(thread, row);
  // A context that was left and is entered again is among the contexts twice.
  const uint32_t known = thread.steps.context();
  const bool is_same = row.context != 0 && contexts_[row.context] == contexts_[known];
  range.step_context = is_same ? known : row.context;
  if (!range.is_outermost) {
    return thread.steps.begin_inside(range.step_context, work, thread.index, out_.steps);
  }
  const int64_t start_ns = row.start_ns + row.offset_ns;
  const TrainingSteps::Begin begin{row.event_id, start_ns,
                                   thread.index, range.step_context,
                                   work,         {row.event_id, row.name, row.source, row.flags}};
  const auto comes = [this, &thread, position] { return optimizer_comes(thread, position); };
  if (thread.steps.begin(begin, idle_limits_, comes, out_.steps)) row.flags |= kBeginsStep;
  range.trace = thread.steps.trace(range.step_context);
}

void Drain::read_point(Thread& thread, uint64_t head, uint64_t position) {
  const uint64_t ticks = thread.word(position + 1);
  if (is_from_earlier(thread, ticks)) return;
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  FullRow row;
  fill(thread, row, head, ticks);
  fill_parents(thread, row, head, ticks, thread.open.data() + thread.open.size());
  row.kind = kind_of(head) == kMark ? kMarkRow : kMemoryRow;
  row.source = kRecordFunctionSource;
  if (row.kind == kMemoryRow) {
    row.fill_optional().device = std::exchange(row.name, names_.intern("[memory]"));
    row.fill_optional().nbytes = static_cast<int64_t>(thread.word(position + 2));
  }
  end_row(row, row.start_ns, thread.index, thread.index);
  out_.rows.add(row);
  count_begin(thread);
}

void Drain::read_end(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const uint64_t event_id = make_event_id(thread.buffer->number, ordinal_of(head));
  if (OpenRange* const ended = find_open(thread, event_id)) {  // else it isn't open any more
    const bool is_innermost = ended == &thread.open.back();
    const std::optional<int64_t> cut_ns = is_innermost ? std::nullopt : let_out(thread, *ended);
    const bool crosses = !is_innermost && !cut_ns;
    const uint32_t flags =
        (end_flags_of(head) & (kEventFlags | kExposed)) | (crosses ? uint32_t{kCrossing} : 0u);
    if (thread.pending) ended->row.fill_optional().add(*thread.pending);
    note_end(ended->row, ticks);
    const int64_t end_ns = clock_->monotonic_ns(ticks);
    thread.last_ns = end_ns + ended->row.offset_ns;
    seal(thread, *ended, cut_ns ? *cut_ns : end_ns, flags, thread.index);
  }
  thread.pending.reset();
}

}  // namespace recfn
