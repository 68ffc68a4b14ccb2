// THE HOT PATH: a thread opens and closes ranges.
//
// One producer (the thread) and one consumer (the drain). No lock, no allocation, no system call
// per event; this header is compiled both into the recorder and into the torch observer, so that a
// begin is inlined into PyTorch's callback.
//
//     begin   catch_up ─► prepare_begin ─► put_begin ─────────────────────────────► push an entry
//             a new       the parent, by   room for it and all ends? its prelude,
//             capture?    parents.hpp      its name if it is new, the begin
//
//     end     the top entry has the key? ─► pop ─► put_end, if the entry has an ordinal
//             └ else end_out_of_order: an entry further down, or a range of another thread
//
// Room: a begin is written only if, after it, there is still room for the end of every range that
// is open and recorded. So no end of the thread's own is dropped, and what comes out of the ring
// always nests:
//
//   what begins               in the ring           on the stack                     its end writes
//   ------------------------  --------------------  -------------------------------  --------------
//   a range that is recorded  its record            an entry with its ordinal        its record
//   where the ring is full    nothing; counted      PyTorch's: one without ordinal,  nothing
//                                                   Python's: nothing, and no id
//   in a disabled thread      nothing; counted, if  the same                         nothing
//                             a span disables it
//   of another scope          nothing               the same                         nothing
//   where the stack is full   nothing; counted      nothing                          nothing
#pragma once
#include <cstdint>
#include <cstring>

#include "core/clock.hpp"
#include "parents/parents.hpp"
#include "recording/prelude.hpp"

namespace recfn {

[[gnu::noinline]] inline void forget_ended_by_others(ThreadBuffer& buffer) {
  EndedByOthers& closed = buffer.ended_by_others;
  uint32_t tail = closed.tail.load(std::memory_order_relaxed);
  // Acquire, for push's release: the keys up to the head are written.
  for (const uint32_t head = closed.head.load(std::memory_order_acquire); tail != head; ++tail) {
    const uint64_t key = closed.keys[tail % EndedByOthers::kCapacity];
    for (uint32_t index = buffer.open.depth; index-- > 0;) {
      if (buffer.stack[index].key != key) continue;
      if (buffer.stack[index].ordinal() != 0 && index >= buffer.open.floor) --buffer.open.recorded;
      remove_entry(buffer, index);
      break;
    }
  }
  // Release: the drain writes over slots only after they were read here.
  closed.tail.store(tail, std::memory_order_release);
}

// The next begin's rows, and those after them, belong to that profiler run.
inline void send_profiler(ThreadBuffer& buffer, uint32_t profiler) {
  if (profiler == buffer.preceding.profiler) return;
  buffer.preceding.profiler = profiler;
  buffer.recording.unsent |= kProfilerUnsent;
}

// The profiler run as the thread was told, or as PyTorch carried it there; where both are known
// they are the same.
inline uint32_t profiler_now(Globals& globals, const ThreadBuffer& buffer) {
  const auto read = observer_hooks(globals).read_profiler;
  const uint32_t profiler = read != nullptr ? read() : 0;
  return profiler != 0 ? profiler : buffer.profiler;
}

inline void note_torchs_id(Globals& globals, ThreadBuffer& buffer) {
  if (globals.logical_thread_id.load(std::memory_order_relaxed) == nullptr) return;
  buffer.identity.has_torchs_id = true;
  recorder_hooks(globals).note_torchs_id(buffer);
}

inline bool selects(uint32_t recording, uint32_t scope) { return (recording >> scope & 1) != 0; }

// The thread alone writes its counts, and others read them: no instruction that locks is needed.
inline void count_dropped(ThreadBuffer& buffer) {
  buffer.counts.dropped.store(buffer.counts.dropped.load(std::memory_order_relaxed) + 1,
                              std::memory_order_relaxed);
}

[[gnu::noinline]] inline void put_end_texts(ThreadBuffer& buffer, const Ending& ending,
                                            uint64_t reserved) {
  const auto put = [&](TextKind kind, Text text) {
    if (buffer.has_room(reserved + text_words(text))) put_text(buffer, kind, text);
  };
  put(kErrorText, ending.error);
  put(kStacktrace, ending.stacktrace);
  put(kAttributesText, ending.attributes);
  put(kGenerationText, ending.generation);
}

[[gnu::always_inline]] inline void put_end(Globals& globals, ThreadBuffer& buffer, uint64_t ordinal,
                                           uint32_t flags, const Ending& ending) {
  const uint64_t ticks =
      ending.ended_at != 0 ? ending.ended_at : read_ticks(globals.use_cycle_counter);
  const uint64_t reserved = uint64_t{kEndWords} * buffer.open.recorded;  // this end's room included
  if (__builtin_expect(ending.has_texts(), 0)) put_end_texts(buffer, ending, reserved);
  if (ending.cpu_time_ns != -1 && buffer.has_room(reserved + 2)) {
    put_number(buffer, k_cpu_time_ns_number, ending.cpu_time_ns);
  }
  // Not before: the details take no room that is reserved for this end and the others.
  --buffer.open.recorded;
  buffer.put_and_publish({end_header(flags, ordinal), ticks});
}

// Whether PyTorch's switch of the calling thread is on, as far as it is known.
inline bool is_enabled(Globals& globals) {
  const auto torchs = globals.is_enabled.load(std::memory_order_relaxed);
  return torchs == nullptr || torchs();
}

// Whether a disabled thread stays disabled. One that nobody switched off refreshes its context
// where that may have changed.
[[gnu::noinline]] inline bool stays_disabled(Globals& globals, ThreadBuffer& buffer, uint32_t epoch,
                                             MayRefresh may_refresh) {
  if ((buffer.recording.disabled_by & kDisabled) != 0 ||
      ((buffer.recording.disabled_by & kDisabledInTorch) != 0 && !is_enabled(globals))) {
    return true;
  }
  set_disabled(buffer, kDisabledInTorch, false);
  if (buffer.recording.enabled_epoch != epoch ||
      globals.sampled_alone.load(std::memory_order_relaxed) == 0) {
    set_disabled(buffer, kUnsampled, false);
    buffer.refresh.stale |= kContextStale;
    return false;
  }
  const bool below_operator = buffer.open.depth > buffer.open.since_refresh &&
                              !buffer.stack[buffer.open.depth - 1].runs_python();
  if (!below_operator && may_refresh == kMayRefresh) refresh_context_if_changed(globals, buffer);
  return buffer.recording.disabled_by != 0;
}

// Takes in what changed since this thread's last begin: a capture began, or another thread ended a
// range of this one. False when the thread is disabled, that is, not recorded. A disabled thread's
// epoch is never the current one (`set_disabled`): the comparison of epochs asks both at once.
inline bool catch_up(Globals& globals, ThreadBuffer& buffer, MayRefresh may_refresh) {
  const EndedByOthers& closed = buffer.ended_by_others;
  const bool has_closed =
      closed.head.load(std::memory_order_relaxed) != closed.tail.load(std::memory_order_relaxed);
  if (__builtin_expect(has_closed, 0)) forget_ended_by_others(buffer);
  const uint32_t epoch = globals.epoch.load(std::memory_order_relaxed);
  if (__builtin_expect(buffer.recording.epoch != epoch, 0)) {
    if (buffer.recording.disabled_by != 0 && stays_disabled(globals, buffer, epoch, may_refresh)) {
      return false;
    }
    if (buffer.recording.epoch != epoch) enter_epoch(buffer, epoch);
  }
  return true;
}

inline void count_unsampled(ThreadBuffer& buffer) {
  if ((buffer.recording.disabled_by & (kDisabled | kDisabledInTorch)) != 0) return;
  buffer.counts.unsampled.store(buffer.counts.unsampled.load(std::memory_order_relaxed) + 1,
                                std::memory_order_relaxed);
}

// Writes the begin and what stands before it. `began_at`: in ticks; 0: now. Returns its ordinal, or
// 0 when there is no room.
template <bool kTorch>
[[gnu::always_inline]] inline uint64_t put_begin(Globals& globals, ThreadBuffer& buffer,
                                                 Begin begin, uint32_t base,
                                                 uint64_t began_at = 0) {
  bool named;
  const uint64_t hash = hash_name(begin.name);
  uint32_t slot = find_name_slot(buffer, begin.name, hash, named);
  const uint32_t prelude_size = prelude_words(buffer, begin.prelude);
  const uint32_t name_words = named && prelude_size == 0 ? 0 : 1 + words_of(begin.name.size);
  const uint64_t ends = uint64_t{kEndWords} * (buffer.open.recorded + 1u);
  const bool numbers = kTorch || begin.has_numbers;
  const uint64_t own = (numbers ? kLongBeginWords : kBeginWords) + ends;
  if (__builtin_expect(!buffer.has_room(own + prelude_size + name_words), 0)) return 0;
  if (__builtin_expect(prelude_size != 0, 0)) {
    put_prelude(buffer, begin.prelude);
    // A text may have taken the name's slot.
    slot = find_name_slot(buffer, begin.name, hash, named);
  }
  if (__builtin_expect(!named, 0)) put_name(buffer, begin.name, hash, slot);
  const uint64_t forward = begin.forward_thread_id <= UINT32_MAX ? begin.forward_thread_id : 0;
  const uint64_t head =
      header(numbers ? kLongBegin : kBegin, begin.scope, begin.flags | base, slot, forward);
  buffer.write_soon_from(buffer.ring.head);
  const uint64_t ticks = began_at != 0 ? began_at : read_ticks(globals.use_cycle_counter);
  const uint64_t ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  // Relaxed: the drain counts the records that it reads, and takes this for how many will come.
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  ++buffer.open.recorded;
  if constexpr (!kTorch) buffer.cpu.range_began_at = ticks;
  if (numbers) {
    buffer.put_and_publish({head, ticks, begin.handle, static_cast<uint64_t>(begin.sequence_nr)});
  } else {
    buffer.put_and_publish({head, ticks});
  }
  return ordinal;
}

// The range is not recorded: the thread has just been disabled.
constexpr uint32_t kDisabledNow = 1u << 31;

// Finds the parent of a range that begins now; where that is no range on the thread's stack, also
// reads the profiler run and what PyTorch calls the thread. Returns kBaseBegin, 0 or kDisabledNow.
[[gnu::always_inline]] inline uint32_t prepare_begin(Globals& globals, ThreadBuffer& buffer,
                                                     MayRefresh may_refresh, Begins begins) {
  const uint32_t base = parent_of_begin(globals, buffer, may_refresh, begins);
  if (base != 0 && may_refresh == kMayRefresh) {
    if (__builtin_expect(buffer.recording.disabled_by != 0, 0)) return kDisabledNow;
    send_profiler(buffer, profiler_now(globals, buffer));
    if (__builtin_expect(!buffer.identity.has_torchs_id, 0)) note_torchs_id(globals, buffer);
  }
  return base;
}

// The begin is not written: a Parent record that was to stand before it would be wrong for the next
// one.
inline void count_dropped_begin(ThreadBuffer& buffer) {
  count_dropped(buffer);
  buffer.recording.unsent &= ~uint32_t{kParentUnsent};
}

inline bool is_frame(const Begin& begin) {
  return __builtin_expect(begin.scope == kTorchscriptFunctionScope, 0);
}

// Whether it is a function's, or a fork's: what else TorchScript's interpreter runs ("<forward
// op>") is begun by such a frame.
inline bool is_call_frame(const Begin& begin) {
  constexpr char kFork[] = "<forked function>";
  if (!is_frame(begin)) return false;
  return begin.name.data[0] != '<' || std::strcmp(begin.name.data, kFork) == 0;
}

// PyTorch's own operators (aten::) are C++ and call no Python; whatever else PyTorch runs may.
inline bool may_run_python(const Begin& begin) {
  if (begin.scope != kFunctionScope) {
    return begin.scope == kUserScope || begin.scope == kBackwardFunctionScope || is_frame(begin);
  }
  return begin.name.size < 6 || std::memcmp(begin.name.data, "aten::", 6) != 0;
}

inline bool is_call(const Begin& begin) {
  return (begin.flags & kSourceMask) == kPythonCallSource << kSourceShift;
}

// Work that is launched from here on lies in the thread's Python range.
inline void propagate_pending(Globals& globals, ThreadBuffer& buffer) {
  if (__builtin_expect(buffer.propagation.pending != nullptr, 0)) {
    recorder_hooks(globals).propagate_now(buffer);
  }
}

// The stack has no room for it: its end is one of a range that nobody has recorded.
[[gnu::noinline]] inline uint64_t drop_too_deep(ThreadBuffer& buffer, bool selected) {
  if (selected) count_dropped_begin(buffer);
  return 0;
}

// Opens a range. Returns its event id, or 0 when it is not recorded. A begin of torch leaves an
// entry on the stack in that case too, because its end is called whatever became of the begin.
template <bool kTorch>
[[gnu::always_inline]] inline uint64_t begin_range(Globals& globals, ThreadBuffer& buffer,
                                                   Begin begin, bool selected) {
  if (__builtin_expect(!catch_up(globals, buffer, kMayRefresh), 0)) {
    if (selected) count_unsampled(buffer);
    selected = false;
  }
  const uint32_t deepest = (begin.flags & kAsync) != 0 ? kMaxDepthForAsync : kMaxDepth;
  if (__builtin_expect(buffer.open.depth >= deepest, 0)) return drop_too_deep(buffer, selected);
  uint64_t ordinal = 0;
  uint32_t base = 0;
  if (!kTorch && !is_call(begin) && !is_enabled(globals)) return 0;
  if (kTorch) propagate_pending(globals, buffer);
  if (__builtin_expect(selected, 1)) {
    base = prepare_begin(globals, buffer, kMayRefresh,
                         kTorch && is_call_frame(begin) ? kFrame : kNoFrame);
    // Again, since a refresh may run Python, which may leave ranges open.
    if (__builtin_expect(buffer.open.depth >= deepest, 0)) return drop_too_deep(buffer, true);
    if (__builtin_expect(base == kDisabledNow, 0)) {
      count_unsampled(buffer);
    } else {
      if constexpr (kTorch) {
        ordinal = put_begin<kTorch>(globals, buffer, begin, base);
      } else {
        const OptionalPrelude* const optional = begin.prelude.optional;
        ordinal = put_begin<kTorch>(globals, buffer, begin, base,
                                    optional != nullptr ? optional->began_at : 0);
      }
      if (__builtin_expect(ordinal == 0, 0)) count_dropped_begin(buffer);
    }
  }
  if (!kTorch && ordinal == 0) return 0;
  const uint64_t event_id = make_event_id(buffer.number, ordinal);
  OpenEntry& entry = buffer.stack[buffer.open.depth++];
  entry.key = kTorch ? begin.handle : event_id;
  entry.word = ordinal | ((begin.flags & kAsync) != 0 ? OpenEntry::kAsyncBit : 0) |
               (kTorch ? 0 : OpenEntry::kEnteredBit) |
               (!kTorch || may_run_python(begin) ? OpenEntry::kPythonBit : 0) |
               (base != 0 ? OpenEntry::kBaseBit : 0);
  if (kTorch && is_frame(begin) && ordinal != 0) entry.word |= OpenEntry::kFrameBit;
  entry.task = buffer.refresh.task;
  return ordinal != 0 ? event_id : 0;
}

// A Python call. `optional`: its call site, or null.
inline Begin call_of(Text name, const OptionalPrelude* optional) {
  Begin begin;
  begin.name = name;
  begin.flags = kPythonCallSource << kSourceShift;
  begin.prelude.optional = optional;
  return begin;
}

// Opens a range for a Python call, which stands on the thread's stack alone: no task enters it.
// Returns as begin_range does.
[[gnu::noinline]] inline uint64_t begin_call(Globals& globals, ThreadBuffer& buffer,
                                             const Begin& call) {
  const uint64_t event_id = begin_range<false>(globals, buffer, call, true);
  if (event_id != 0) buffer.stack[buffer.open.depth - 1].word &= ~OpenEntry::kEnteredBit;
  return event_id;
}

// A thread is met that has calls open already, which are begun now: in the span that is current,
// but in no range that is open.
inline void find_open_call_context(Globals& globals, ThreadBuffer& buffer) {
  buffer.refresh.stale |= kContextStale;
  if (!catch_up(globals, buffer, kMayRefresh)) return;
  refresh_context_if_changed(globals, buffer);
  if (prepare_begin(globals, buffer, kMayRefresh, kNoFrame) != 0) return;
  buffer.recording.unsent =
      static_cast<uint8_t>((buffer.recording.unsent & ~uint32_t{kParentUnsent}) | kContextUnsent);
  buffer.preceding.context = Context{};
  buffer.preceding.context_since = buffer.ordinal.load(std::memory_order_relaxed);
}

// Opens a range for such a call, the outermost first. Also in a buffer that stands for another
// thread (`Registry::stand_in`), which nobody else writes, and in which nothing is current. Returns
// as begin_range does.
[[gnu::noinline]] inline uint64_t begin_open_call(Globals& globals, ThreadBuffer& buffer,
                                                  const Begin& call, uint64_t began_at) {
  if (buffer.recording.disabled_by != 0) {
    count_unsampled(buffer);
    return 0;
  }
  if (buffer.open.depth == kMaxDepth) return drop_too_deep(buffer, true);
  const uint32_t index = earlier_calls_end(buffer);
  const bool is_outermost = index == buffer.open.floor;
  if (!is_outermost) {
    buffer.preceding.parent_ordinal = buffer.stack[index - 1].ordinal();
    buffer.recording.unsent |= kParentUnsent;
  }
  const uint64_t ordinal =
      put_begin<false>(globals, buffer, call, is_outermost ? kBaseBegin : 0, began_at);
  if (ordinal == 0) {
    count_dropped_begin(buffer);
    return 0;
  }
  OpenEntry& entry = buffer.stack[index];
  std::memmove(&entry + 1, &entry, (buffer.open.depth - index) * sizeof(OpenEntry));
  const uint64_t bits =
      OpenEntry::kEarlierBit | OpenEntry::kPythonBit | (is_outermost ? OpenEntry::kBaseBit : 0);
  entry = {make_event_id(buffer.number, ordinal), ordinal | bits,
           is_outermost ? enclosing_id(buffer.preceding.context) : (&entry)[-1].task};
  buffer.open.since_refresh = ++buffer.open.depth;
  buffer.refresh.stale |= kContextStale;
  return entry.key;
}

// The range is not the innermost: it ended out of order, or began on another thread.
[[gnu::noinline]] inline void end_out_of_order(Globals& globals, ThreadBuffer& buffer, uint64_t key,
                                               uint64_t begin_thread_id, uint32_t flags,
                                               const Ending& ending) {
  for (uint32_t index = buffer.open.depth; index-- > 0;) {
    if (buffer.stack[index].key != key) continue;
    const uint64_t ordinal = index >= buffer.open.floor ? buffer.stack[index].ordinal() : 0;
    remove_entry(buffer, index);
    // The drain knows what above it was open still.
    if (ordinal != 0) put_end(globals, buffer, ordinal, flags, ending);
    return;
  }
  if (buffer.open.depth == kMaxDepth) return;  // its begin found no room
  globals.remote_ends.push(
      {key, begin_thread_id, read_ticks(globals.use_cycle_counter), buffer.number, flags},
      ending.error.data, ending.error.size);
}

// Closes the range that was begun with `key`, from any thread. `begin_thread_id`: RecordFunction's
// id of the thread that began it, 0 where the key is an event id (which names the thread itself).
[[gnu::always_inline]] inline void end_range(Globals& globals, ThreadBuffer& buffer, uint64_t key,
                                             uint64_t begin_thread_id, uint32_t flags,
                                             const Ending& ending) {
  if (__builtin_expect(buffer.open.depth == 0 || buffer.stack[buffer.open.depth - 1].key != key,
                       0)) {
    end_out_of_order(globals, buffer, key, begin_thread_id, flags, ending);
    return;
  }
  const uint32_t index = --buffer.open.depth;
  const uint64_t ordinal = buffer.stack[index].ordinal();
  if (__builtin_expect(index < buffer.open.floor, 0)) {
    buffer.open.floor = index;
    return;
  }
  if (ordinal != 0) put_end(globals, buffer, ordinal, flags, ending);
}

// From here on the thread works for that profiler run.
inline void set_profiler(ThreadBuffer& buffer, uint32_t profiler) {
  buffer.profiler = profiler;
  send_profiler(buffer, profiler);
}

// A thread notes a moment: a mark, or a change of memory. Such a point lies in what is open, and
// opens nothing itself.

// Reads the current context, if it may have changed, before a point that can't wait for that
// itself.
inline void prepare_point(Globals& globals, ThreadBuffer& buffer) {
  prepare_begin(globals, buffer, kMayRefresh, kNoFrame);
  buffer.recording.unsent &= ~uint32_t{kParentUnsent};
}

// Writes a mark (`name`) or a memory record (`name` is the device) of this moment. Returns its
// event id, or 0 without room.
inline uint64_t put_point(Globals& globals, ThreadBuffer& buffer, RecordKind kind, Text name,
                          int64_t nbytes, MayRefresh may_refresh) {
  if (!catch_up(globals, buffer, may_refresh)) {
    count_unsampled(buffer);
    return 0;
  }
  if (!is_enabled(globals)) return 0;
  const uint32_t base = prepare_begin(globals, buffer, may_refresh, kNoFrame);
  if (base == kDisabledNow) {
    count_unsampled(buffer);
    return 0;
  }
  const uint64_t ends = uint64_t{kEndWords} * buffer.open.recorded;
  if (!buffer.has_room(kPointWords + prelude_words(buffer, {}) + 1 + words_of(name.size) + ends)) {
    count_dropped_begin(buffer);
    return 0;
  }
  put_prelude(buffer, {});
  const uint64_t head = header(kind, 0, base, put_named(buffer, name), 0);
  const uint64_t ticks = read_ticks(globals.use_cycle_counter);
  const uint64_t ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  buffer.put_and_publish({head, ticks, static_cast<uint64_t>(nbytes)});
  return make_event_id(buffer.number, ordinal);
}

// What the calling thread, whose buffer that is, has worked until now, which is `ticks`. What is
// read once holds for a moment: a thread that was taken off its core wouldn't be back so soon, so
// that it has worked since.
inline int64_t worked_until(const Globals& globals, ThreadBuffer& buffer, uint64_t ticks) {
  constexpr double kMomentNs = 20'000;
  const double since_ns = static_cast<double>(ticks - buffer.cpu.worked_at) * globals.ns_per_tick;
  if (since_ns < kMomentNs) return buffer.cpu.worked_ns + static_cast<int64_t>(since_ns);
  buffer.cpu.worked_ns = thread_cpu_ns();
  buffer.cpu.worked_at = read_ticks(globals.use_cycle_counter);
  return buffer.cpu.worked_ns;
}

}  // namespace recfn
