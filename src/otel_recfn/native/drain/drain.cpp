#include "drain/drain.hpp"

#include <algorithm>
#include <functional>
#include <new>
#include <tuple>
#include <utility>

namespace recfn {
namespace {

constexpr size_t kMaxPendingRemote = 65'536;
constexpr int kRemoteEndPatience = 3;  // drains to wait for the begin of a remote end
constexpr uint64_t kReleaseEveryWords = 16'384;
constexpr size_t kCompactContextsAbove = 256;
constexpr size_t kMaxKeptRows = 32'768;  // whose memory the next drain uses again
constexpr size_t kMaxWaitingRows = 65'536;  // of drains that nobody could take for want of memory; rings are not read beyond

uint32_t kind_of(uint64_t head) { return head & 15; }
uint32_t flags_of(uint64_t head) { return head >> 8 & 255; }
uint32_t slot_of(uint64_t head) { return head >> 16 & 0xFFFF; }
uint32_t payload_of(uint64_t head) { return static_cast<uint32_t>(head >> 32); }

bool is_begin(uint64_t head) { return kind_of(head) == kBegin || kind_of(head) == kLongBegin; }

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

// Does the work, unless memory runs out in it: then it is left as it is for the next drain.
template <typename Work>
bool done(Work work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

const Drained& Drain::run(bool close_open, bool open_ranges) {
  Globals& shared = globals();
  ++runs_;
  if (!clock_started_) begin_recording();
  note_jump(clock_.anchor(read_clocks(shared.use_cycle_counter)));
  out_.rows.resize(out_.closed);  // without the copies of a run that was not taken
  short_of_memory_ = false;
  if (out_.rows.size() < kMaxWaitingRows) {
    read(close_open);
  } else {
    short_of_memory_ = true;
  }
  out_.closed = out_.rows.size();
  out_.complete = !short_of_memory_;
  out_.node_id = current_node_id();
  out_.contexts = contexts_;
  if (open_ranges) copy_open(clock_.monotonic_ns(read_ticks(shared.use_cycle_counter)));
  if (short_of_memory_ && out_.rows.empty() && out_.opened.empty()) throw std::bad_alloc();
  return out_;
}

void Drain::begin_recording() {
  const bool cycles = globals().use_cycle_counter;
  if (!clock_started_) clock_.start(read_clocks(cycles), nominal_ns_per_tick(cycles)), clock_started_ = true;
  clock_.begin(read_clocks(cycles));
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
  attempt([this] { list_threads(); });
  attempt([this] { collect_remote_ends(); });
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

bool Drain::taken(uint64_t run, size_t rows) {
  if (run != runs_) return false;
  out_.rows.resize(out_.closed);
  out_.rows.erase(out_.rows.begin(), out_.rows.begin() + static_cast<std::ptrdiff_t>(std::min(rows, out_.rows.size())));
  out_.closed = out_.rows.size();
  out_.opened.clear();
  if (out_.rows.empty()) forget_taken();
  return true;
}

// Memory that was used before is several times as cheap as new one.
void Drain::forget_taken() {
  std::vector<Row> rows = std::move(out_.rows);
  out_ = Drained{};
  if (rows.capacity() <= kMaxKeptRows) rows.clear(), out_.rows = std::move(rows);
  for (Thread& thread : threads_) thread.listed = false;
  done([this] { compact_contexts(); });
}

void Drain::discard() {
  for (bool complete = false; !complete;) {
    done([&] { complete = run(true, false).complete; });
    if (!complete && out_.rows.empty()) break;
    discarded_.fetch_add(out_.closed, std::memory_order_relaxed);
    out_.rows.clear(), out_.opened.clear(), out_.closed = 0;
    forget_taken();
  }
}

void Drain::meet_new_threads() {
  for (ThreadBuffer* buffer : registry().snapshot()) {
    if (buffer->met) continue;
    Thread added{};
    added.buffer = buffer;
    added.pending = no_row();
    added.dictionary.assign(kNameSlots + 1, 0);
    added.dictionary[kManyNamesSlot] = names_.intern("<many names>");
    threads_.push_back(std::move(added));
    buffer->met = true;
  }
}

// Those that a row of this drain may name: thousands of others may have nothing to say. And room for all rows at once, as far as
// is known: growing step by step would copy them.
void Drain::list_threads() {
  uint64_t unread = 0;
  for (Thread& thread : threads_) {
    const ThreadBuffer& buffer = *thread.buffer;
    const bool wrote = buffer.published.load(std::memory_order_acquire) != buffer.consumed.load(std::memory_order_relaxed);
    if (wrote || thread.listed || !thread.open.empty()) list(thread);
    unread += buffer.published.load(std::memory_order_relaxed) - buffer.consumed.load(std::memory_order_relaxed);
  }
  const size_t rows = out_.rows.size() + unread / (kBeginWords + kEndWords);
  if (rows > kMaxKeptRows && rows > out_.rows.capacity()) done([&] { out_.rows.reserve(rows); });
}

void Drain::list(Thread& thread) {
  const ThreadBuffer& buffer = *thread.buffer;
  const ThreadRow row{buffer.number, buffer.thread_id.load(), buffer.native_id, buffer.ident};
  if (thread.listed) {
    out_.threads[thread.index] = row;
    return;
  }
  out_.threads.push_back(row);
  thread.index = static_cast<uint32_t>(out_.threads.size() - 1);
  thread.listed = true;
}

uint32_t Drain::thread_index(uint64_t number, uint32_t otherwise) {
  for (Thread& thread : threads_) {
    if (thread.buffer->number != number) continue;
    list(thread);
    return thread.index;
  }
  return otherwise;
}

void Drain::age_remote_ends() {
  for (auto at = remote_.begin(); at != remote_.end();) {
    at = --at->second.drains_left < 0 ? remote_.erase(at) : std::next(at);
  }
}

void Drain::collect_remote_ends() {
  while (const RemoteEnd* end = globals().remote_ends.front()) {
    if (remote_.size() < kMaxPendingRemote) remote_.try_emplace(end->key, PendingRemote{*end, kRemoteEndPatience});  // the first counts
    if (untold_.size() < kMaxPendingRemote) untold_.push_back(*end);
    globals().remote_ends.pop();
  }
}

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
    case kParent:
      thread.parent_ordinal = head >> 24;
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
  std::tie(thread.pending.shapes, thread.pending.dtypes) = names_.intern_shapes(words);
}

void Drain::read_text_record(Thread& thread, uint64_t head, uint64_t at) {
  Row& pending = thread.pending;
  uint32_t* const kinds[] = {&pending.module, &pending.error, &pending.shapes, &pending.dtypes};
  *kinds[head >> 4 & 3] = names_.intern(read_text(thread, at + 1, payload_of(head)));
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

void Drain::begun(Thread& thread) {
  ++thread.ordinal;
  thread.parent_ordinal = 0;
  thread.pending = no_row();
}

void Drain::read_begin(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
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
  begun(thread);
}

void Drain::read_point(Thread& thread, uint64_t head, uint64_t at) {
  const auto word = [&thread](uint64_t index) { return thread.word(index); };
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
  begun(thread);
}

void Drain::emit(Row row) {
  row.start_ns += row.offset_ns, row.end_ns += row.offset_ns;
  out_.has_uncommon |= (row.profiler | row.stack | row.device) != 0 || row.flops != 0;
  out_.rows.push_back(row);
}

// The range of the thread that the next begin lies in; null where it is what the last Context record says.
const Drain::OpenRange* Drain::parent_of(const Thread& thread, bool base) const {
  const uint64_t ordinal = thread.parent_ordinal;
  if (base) return nullptr;
  // A range that another thread ended meanwhile isn't open any more: what was around it is the parent.
  const auto is_parent = [ordinal](const OpenRange& open) {
    return (open.row.flags & kAsync) == 0 && (ordinal == 0 || open.ordinal <= ordinal);
  };
  const auto found = std::find_if(thread.open.rbegin(), thread.open.rend(), is_parent);
  return found != thread.open.rend() ? &*found : nullptr;
}

// Parent, root and context of a range that begins now.
void Drain::place(Thread& thread, OpenRange& range, bool base) {
  Row& row = range.row;
  if (const OpenRange* parent = parent_of(thread, base)) {
    row.parent = parent->row.event_id, row.root = parent->row.root, row.context = parent->row.context;
  } else {
    row.parent = thread.enclosing, row.context = thread.context;
    row.root = row.parent == 0 ? row.event_id : thread.root != 0 ? thread.root : row.parent;
  }
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
  for (size_t index = thread.open.size(); index-- > 0;) {
    if (thread.open[index].ordinal != ordinal) continue;
    const uint32_t out_of_order = index + 1 != thread.open.size() ? uint32_t{kAsync} : 0u;
    seal(thread, index, clock_.monotonic_ns(ticks), (flags_of(head) & (kEventFlags | kShown)) | out_of_order, thread.pending.error,
         thread.index);
    break;
  }
  thread.pending.error = 0;
}

void Drain::seal(Thread& thread, size_t index, int64_t end_ns, uint32_t flags, uint32_t error, uint32_t end_thread) {
  Row row = thread.open[index].row;
  row.flags |= flags | (error != 0 ? uint32_t{kError} : 0u);
  row.error = error;
  row.end_ns = std::max(end_ns, row.start_ns);
  row.thread = thread.index;
  row.end_thread = end_thread;
  thread.offsets.passed(row.end_ns + row.offset_ns);
  emit(row);  // the one thing here that may fail
  thread.open.erase(thread.open.begin() + static_cast<std::ptrdiff_t>(index));
}

void Drain::close_remotely_ended(Thread& thread, uint64_t until_ticks) {
  for (size_t index = thread.open.size(); index-- > 0;) {
    const auto found = remote_.find(thread.open[index].key);
    if (found == remote_.end() || found->second.end.ticks > until_ticks) continue;
    const RemoteEnd& end = found->second.end;
    const uint32_t error = end.error_size != 0 ? names_.intern({end.error, end.error_size}) : 0;
    seal(thread, index, clock_.monotonic_ns(end.ticks), end.flags & (kEventFlags | kShown), error,
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
  remote_.clear();
}

// As if they ended now, innermost first; they stay open.
void Drain::copy_open(int64_t now_ns) {
  for (Thread& thread : threads_) {
    if (!thread.open.empty()) list(thread);
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
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      for (uint32_t& name : thread.dictionary) visit(name);
      for (OpenRange& range : thread.open) {
        Row& row = range.row;
        visit(row.name), visit(row.shapes), visit(row.dtypes), visit(row.module), visit(row.stack);
      }
      Row& pending = thread.pending;
      visit(pending.shapes), visit(pending.dtypes), visit(pending.module), visit(pending.error), visit(pending.stack);
    }
  };
  std::vector<bool> kept(names_.size());
  each_reference([&kept](uint32_t index) { kept[index] = true; });
  const std::vector<uint32_t> moved = names_.start_epoch(kept);
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
}

void Drain::compact_contexts() {
  if (contexts_.size() < kCompactContextsAbove) return;
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      visit(thread.context);
      for (OpenRange& range : thread.open) visit(range.row.context);
    }
  };
  std::vector<bool> referred(contexts_.size());
  each_reference([&referred](uint32_t index) { referred[index] = true; });
  std::vector<Context> kept{Context{}};
  std::vector<uint32_t> moved(contexts_.size());
  for (uint32_t index = 1; index < contexts_.size(); ++index) {
    if (!referred[index]) continue;
    moved[index] = static_cast<uint32_t>(kept.size());
    kept.push_back(contexts_[index]);
  }
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
  contexts_.swap(kept);
}

void Drain::after_fork_in_child() {
  threads_.clear(), remote_.clear(), untold_.clear();
  contexts_.assign(1, Context{});
  out_ = Drained{};
  discarded_.store(0);
}

}  // namespace recfn
