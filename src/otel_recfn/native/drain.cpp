#include "drain.hpp"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

namespace recfn {
namespace {

constexpr size_t kMaxPendingRemote = 65'536;
constexpr int kRemoteEndPatience = 3;  // drains to wait for the begin of a remote end
constexpr uint64_t kReleaseEveryWords = 16'384;
constexpr size_t kCompactContextsAbove = 256;

uint32_t kind_of(uint64_t head) { return head & 15; }
uint32_t flags_of(uint64_t head) { return head >> 8 & 255; }
uint32_t slot_of(uint64_t head) { return head >> 16 & 0xFFFF; }
uint32_t payload_of(uint64_t head) { return static_cast<uint32_t>(head >> 32); }

Row no_row() {
  Row row{};
  row.sequence_nr = row.debug_handle = -1;
  return row;
}

double nominal_ns_per_tick(bool use_cycle_counter) {
  if (!use_cycle_counter) return 1;
  const Reading first = read_clocks(true);
  while (static_cast<int64_t>(monotonic_ns()) - first.monotonic_ns < 2'000'000) {
  }
  const Reading last = read_clocks(true);
  return static_cast<double>(last.monotonic_ns - first.monotonic_ns) / static_cast<double>(last.ticks - first.ticks);
}

}  // namespace

int64_t current_node_id() {
  const int64_t own = globals().own_node_id.load();
  const auto torch_node_id = globals().default_node_id.load();
  return own != -1 || torch_node_id == nullptr ? own : torch_node_id();
}

Drain& drain() {
  static Drain* instance = new Drain;  // never destroyed, as the registry
  return *instance;
}

Drained Drain::run(bool close_open, bool open_ranges) {
  Globals& shared = globals();
  if (!clock_started_) begin_recording();
  out_ = Drained{};
  note_jump(clock_.anchor(read_clocks(shared.use_cycle_counter)));
  if (names_.too_large()) compact_names();
  const std::vector<ThreadBuffer*> buffers = registry().snapshot();
  for (ThreadBuffer* buffer : buffers) thread_of(buffer);
  for (uint32_t index = 0; index < threads_.size(); ++index) {
    const ThreadBuffer& buffer = *threads_[index].buffer;
    threads_[index].index = index;
    out_.threads.push_back({buffer.number, buffer.thread_id.load(), buffer.native_id, buffer.ident});
  }
  collect_remote_ends();
  for (Thread& thread : threads_) read_thread(thread);
  tell_closed_elsewhere();
  if (close_open) close_all_open(clock_.monotonic_ns(read_ticks(shared.use_cycle_counter)));
  out_.closed = out_.rows.size();
  if (open_ranges) copy_open(clock_.monotonic_ns(read_ticks(shared.use_cycle_counter)));
  out_.node_id = current_node_id();
  out_.contexts = contexts_;
  compact_contexts();
  retire_ended();
  return std::move(out_);
}

void Drain::begin_recording() {
  const bool cycles = globals().use_cycle_counter;
  if (!clock_started_) clock_.start(read_clocks(cycles), nominal_ns_per_tick(cycles)), clock_started_ = true;
  clock_.begin(read_clocks(cycles));
}

void Drain::note_jump(int64_t jump_ns) {
  out_.clock_jump_ns = jump_ns;
  if (jump_ns == 0) return;
  for (Thread& thread : threads_) {
    for (OpenRange& open : thread.open) open.row.flags |= kClockJumped;
  }
}

Drain::Thread& Drain::thread_of(ThreadBuffer* buffer) {
  for (Thread& thread : threads_) {
    if (thread.buffer == buffer) return thread;
  }
  Thread& added = threads_.emplace_back();
  added.buffer = buffer;
  added.pending = no_row();
  added.dictionary.assign(kNameSlots, 0);
  return added;
}

uint32_t Drain::thread_index(uint64_t number, uint32_t otherwise) const {
  for (const Thread& thread : threads_) {
    if (thread.buffer->number == number) return thread.index;
  }
  return otherwise;
}

void Drain::collect_remote_ends() {
  for (auto at = remote_.begin(); at != remote_.end();) {
    at = --at->second.drains_left < 0 ? remote_.erase(at) : std::next(at);
  }
  RemoteEnd end;
  while (globals().remote_ends.pop(end)) {
    if (remote_.size() < kMaxPendingRemote) remote_.try_emplace(end.key, PendingRemote{end, kRemoteEndPatience});  // the first counts
    if (untold_.size() < kMaxPendingRemote) untold_.push_back(end);
  }
}

void Drain::read_thread(Thread& thread) {
  ThreadBuffer& buffer = *thread.buffer;
  const uint64_t end = buffer.published.load(std::memory_order_acquire);
  uint64_t at = buffer.consumed.load(std::memory_order_relaxed);
  for (uint64_t released = at; at < end;) {
    at = read_record(thread, at);
    if (at - released < kReleaseEveryWords) continue;
    buffer.consumed.store(at, std::memory_order_release);
    released = at;
  }
  buffer.consumed.store(at, std::memory_order_release);
  if (!remote_.empty()) close_remotely_ended(thread, UINT64_MAX);
}

// Returns where the next record begins.
uint64_t Drain::read_record(Thread& thread, uint64_t at) {
  const auto word = [&](uint64_t index) { return thread.buffer->words[index & (thread.buffer->capacity - 1)]; };
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
      thread.pending.debug_handle = static_cast<int64_t>(word(at + 1));
      return at + 2;
    case kShapes:
      read_shapes(thread, at + 1, payload);
      return at + 1 + payload;
    case kFlops:
      thread.pending.flops = static_cast<int64_t>(word(at + 1));
      return at + 2;
    case kStack:
      thread.pending.stack = thread.dictionary[slot_of(head)];
      return at + 1;
    case kProfiler:
      thread.profiler = payload;
      return at + 1;
    default:  // unreachable while record.hpp and thread_buffer.hpp agree
      return thread.buffer->published.load(std::memory_order_acquire);
  }
}

std::string Drain::read_text(const Thread& thread, uint64_t at, uint32_t bytes) const {
  std::string text(words_of(bytes) * size_t{8}, '\0');
  for (uint32_t index = 0; index < words_of(bytes); ++index) {
    const uint64_t word = thread.buffer->words[(at + index) & (thread.buffer->capacity - 1)];
    std::memcpy(&text[index * size_t{8}], &word, 8);
  }
  text.resize(bytes);
  return text;
}

void Drain::read_context(Thread& thread, uint64_t at) {
  uint64_t words[5];
  for (uint64_t index = 0; index < 5; ++index) words[index] = thread.buffer->words[(at + index) & (thread.buffer->capacity - 1)];
  thread.enclosing = words[4];
  Context context{words[0], words[1], words[2], words[3], 0};
  if (contexts_[thread.context] == context) return;
  thread.context = context == Context{} ? 0 : static_cast<uint32_t>(contexts_.size());
  if (thread.context != 0) contexts_.push_back(context);
}

void Drain::read_shapes(Thread& thread, uint64_t at, uint32_t count) {
  std::vector<uint64_t> words(count);
  for (uint32_t index = 0; index < count; ++index) words[index] = thread.buffer->words[(at + index) & (thread.buffer->capacity - 1)];
  std::tie(thread.pending.shapes, thread.pending.dtypes) = names_.intern_shapes(words);
}

void Drain::read_text_record(Thread& thread, uint64_t head, uint64_t at) {
  Row& pending = thread.pending;
  uint32_t* const kinds[] = {&pending.module, &pending.error, &pending.shapes, &pending.dtypes};
  *kinds[head >> 4 & 3] = names_.intern(read_text(thread, at + 1, payload_of(head)));
}

// What every begin and point has in common; counts it.
Drain::OpenRange Drain::next_range(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  OpenRange range{thread.pending, ++thread.ordinal, 0};
  thread.pending = no_row();
  Row& row = range.row;
  row.error = 0;
  row.event_id = make_event_id(thread.buffer->number, range.ordinal);
  row.name = thread.dictionary[slot_of(head)];
  row.scope = head >> 4 & 15;
  row.flags = flags_of(head) & kEventFlags;
  row.source = static_cast<uint8_t>((flags_of(head) & kSourceMask) >> kSourceShift);
  row.start_ns = clock_.monotonic_ns(ticks);
  row.handle = range.key = row.event_id;
  row.profiler = thread.profiler;
  return range;
}

void Drain::read_begin(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&](uint64_t index) { return thread.buffer->words[index & (thread.buffer->capacity - 1)]; };
  OpenRange range = next_range(thread, head, word(at + 1));
  Row& row = range.row;
  row.forward_thread_id = payload_of(head);
  if (kind_of(head) == kLongBegin) {
    if (const uint64_t handle = word(at + 2)) row.handle = handle;
    row.sequence_nr = static_cast<int64_t>(word(at + 3));
    if (row.source == kTorchSource) range.key = row.handle;
  }
  place(thread, range, (flags_of(head) & kBaseBegin) != 0);
  thread.open.push_back(range);
}

void Drain::read_point(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&](uint64_t index) { return thread.buffer->words[index & (thread.buffer->capacity - 1)]; };
  OpenRange point = next_range(thread, head, word(at + 1));
  Row& row = point.row;
  row.kind = kind_of(head) == kMark ? kMarkEvent : kMemoryEvent;
  row.source = kRecordFunctionSource;
  if (row.kind == kMemoryEvent) {
    row.device = std::exchange(row.name, names_.intern("[memory]"));
    row.nbytes = static_cast<int64_t>(word(at + 2));
  }
  place(thread, point, (flags_of(head) & kBaseBegin) != 0);
  row.end_ns = row.start_ns;
  row.thread = row.end_thread = thread.index;
  emit(row);
}

void Drain::emit(Row row) {
  row.start_ns += row.offset_ns, row.end_ns += row.offset_ns;
  out_.has_uncommon |= (row.profiler | row.stack | row.device) != 0 || row.flops != 0;
  out_.rows.push_back(row);
}

// Parent, root and context of a range that begins now. Its parent is the innermost open range of its thread; an asynchronous
// one counts only where the context says that it encloses what its thread does now.
void Drain::place(Thread& thread, OpenRange& range, bool base) {
  Row& row = range.row;
  const bool by_context = (base || thread.open.empty() || (thread.open.back().row.flags & kAsync) != 0) && thread.enclosing != 0;
  const auto enclosing = std::find_if(thread.open.rbegin(), thread.open.rend(),
                                      [](const OpenRange& open) { return (open.row.flags & kAsync) == 0; });
  if (!by_context && enclosing != thread.open.rend()) {
    const Row& parent = enclosing->row;
    row.parent = parent.event_id, row.root = parent.root, row.context = parent.context;
  } else {
    row.parent = thread.enclosing, row.root = row.parent != 0 ? row.parent : row.event_id, row.context = thread.context;
    if (const auto found = async_open_.find(row.parent); found != async_open_.end()) {
      row.root = found->second.root, row.context = found->second.context;
    }
  }
  if ((row.flags & kAsync) != 0) async_open_[row.event_id] = {row.root, row.context};
  row.offset_ns = offset_of(thread, row);
  thread.offsets.passed(row.start_ns + row.offset_ns);
  if (row.parent == 0 && row.kind == kRangeEvent) out_.opened.push_back({row.event_id, row.name, row.source, thread.index, row.context, row.start_ns + row.offset_ns});
}

int64_t Drain::offset_of(const Thread& thread, const Row& row) const {
  auto around = std::find_if(thread.open.rbegin(), thread.open.rend(), [&](const OpenRange& open) { return open.row.event_id == row.parent; });
  const bool inside_parent = around != thread.open.rend();
  if (!inside_parent) around = thread.open.rbegin();
  const bool inside = around != thread.open.rend();
  return thread.offsets.choose(inside ? std::optional(around->row.offset_ns) : std::nullopt, inside_parent, clock_.offset_ns(), row.start_ns);
}

void Drain::read_end(Thread& thread, uint64_t head, uint64_t ticks) {
  if (!remote_.empty()) close_remotely_ended(thread, ticks);
  const uint64_t ordinal = head >> 24;
  const uint32_t error = std::exchange(thread.pending.error, 0);
  for (size_t index = thread.open.size(); index-- > 0;) {
    if (thread.open[index].ordinal != ordinal) continue;
    const uint32_t out_of_order = index + 1 != thread.open.size() ? uint32_t{kAsync} : 0u;
    seal(thread, index, clock_.monotonic_ns(ticks), (flags_of(head) & kEventFlags) | out_of_order, error, thread.index);
    return;
  }
}

void Drain::seal(Thread& thread, size_t index, int64_t end_ns, uint32_t flags, uint32_t error, uint32_t end_thread) {
  Row& row = thread.open[index].row;
  if ((row.flags & kAsync) != 0) async_open_.erase(row.event_id);
  row.flags |= flags | (error != 0 ? uint32_t{kError} : 0u);
  row.error = error;
  row.end_ns = std::max(end_ns, row.start_ns);
  row.thread = thread.index;
  row.end_thread = end_thread;
  thread.offsets.passed(row.end_ns + row.offset_ns);
  emit(row);
  thread.open.erase(thread.open.begin() + static_cast<std::ptrdiff_t>(index));
}

void Drain::close_remotely_ended(Thread& thread, uint64_t until_ticks) {
  for (size_t index = thread.open.size(); index-- > 0;) {
    const auto found = remote_.find(thread.open[index].key);
    if (found == remote_.end() || found->second.end.ticks > until_ticks) continue;
    const RemoteEnd& end = found->second.end;
    const uint32_t error = end.error_size != 0 ? names_.intern({end.error, end.error_size}) : 0;
    seal(thread, index, clock_.monotonic_ns(end.ticks), end.flags & kEventFlags, error,
         thread_index(end.thread_number, thread.index));
    remote_.erase(found);
  }
}

// The thread that began a range which another one ended still has it on its stack of open ranges.
void Drain::tell_closed_elsewhere() {
  const auto told = [this](const RemoteEnd& end) {
    for (Thread& thread : threads_) {
      const ThreadBuffer& buffer = *thread.buffer;
      const bool began_it = end.begin_thread_id != 0 ? buffer.thread_id.load() == end.begin_thread_id
                                                     : buffer.number == end.key >> kOrdinalBits;
      if (began_it) return thread.buffer->closed_elsewhere.push(end.key);
    }
    return true;  // the thread is gone
  };
  untold_.erase(std::remove_if(untold_.begin(), untold_.end(), told), untold_.end());
}

void Drain::close_all_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    while (!thread.open.empty()) seal(thread, thread.open.size() - 1, now_ns, kPartial, 0, thread.index);
  }
  async_open_.clear();
  remote_.clear();
}

// As if they ended now, innermost first; they stay open.
void Drain::copy_open(int64_t now_ns) {
  for (const Thread& thread : threads_) {
    std::for_each(thread.open.rbegin(), thread.open.rend(), [&](const OpenRange& open) {
      Row row = open.row;
      row.flags |= kPartial;
      row.end_ns = std::max(now_ns, row.start_ns);
      row.thread = row.end_thread = thread.index;
      emit(row);
    });
  }
}

// A thread that ended is forgotten when everything it wrote was read and none of its ranges waits for another thread's end.
void Drain::retire_ended() {
  const auto finished = [](Thread& thread) {
    ThreadBuffer& buffer = *thread.buffer;
    if (!buffer.ended.load(std::memory_order_acquire) || !thread.open.empty()) return false;
    if (buffer.published.load(std::memory_order_acquire) != buffer.consumed.load(std::memory_order_relaxed)) return false;
    registry().retire(&buffer);
    return true;
  };
  threads_.erase(std::remove_if(threads_.begin(), threads_.end(), finished), threads_.end());
}

void Drain::compact_names() {
  std::vector<uint32_t> kept;
  const auto each_reference = [this](const std::function<void(uint32_t&)>& visit) {
    for (Thread& thread : threads_) {
      std::for_each(thread.dictionary.begin(), thread.dictionary.end(), visit);
      for (OpenRange& range : thread.open) {
        Row& row = range.row;
        visit(row.name), visit(row.shapes), visit(row.dtypes), visit(row.module), visit(row.stack);
      }
      Row& pending = thread.pending;
      visit(pending.shapes), visit(pending.dtypes), visit(pending.module), visit(pending.error), visit(pending.stack);
    }
  };
  each_reference([&kept](uint32_t& index) { kept.push_back(index); });
  const auto moved = names_.start_epoch(kept);
  each_reference([&moved](uint32_t& index) { index = moved.at(index); });
}

void Drain::compact_contexts() {
  if (contexts_.size() < kCompactContextsAbove) return;
  std::vector<Context> kept{Context{}};
  std::unordered_map<uint32_t, uint32_t> moved{{0, 0}};
  const auto move = [&](uint32_t& index) {
    const auto [at, added] = moved.try_emplace(index, static_cast<uint32_t>(kept.size()));
    if (added) kept.push_back(contexts_[index]);
    index = at->second;
  };
  for (Thread& thread : threads_) {
    move(thread.context);
    for (OpenRange& range : thread.open) move(range.row.context);
  }
  for (auto& [event_id, enclosing] : async_open_) move(enclosing.context);
  contexts_ = std::move(kept);
}

void Drain::after_fork_in_child() {
  threads_.clear(), async_open_.clear(), remote_.clear(), untold_.clear();
  contexts_.assign(1, Context{});
}

}  // namespace recfn
