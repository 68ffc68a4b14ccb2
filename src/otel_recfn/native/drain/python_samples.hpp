// Samples of what Python runs in a thread while nothing is recorded there.
//
//     sampling thread   look    who has recorded nothing for a millisecond, and the position of its
//                               ring ─► that thread's frames, in Python ─► add, with a name
//     a run             place   the ring is read up to that position: what is open there is what
//                               the sample lies in
//
// A position never comes again, and at the same position the same ranges are open. So nobody has to
// stop the thread, or to read its stack. A record has its moment among its last words, so that one
// look is enough, also where what runs between two records is shorter than the time between looks.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "model/fields.hpp"

namespace recfn {

constexpr int64_t kLookPeriodNs = 20'000'000;  // 50 looks a second on average
constexpr int64_t kQuietNs = 1'000'000;

// What a thread ran, as rows of a drain index it.
struct Sample {
  uint64_t parent;      // event id of the thread's innermost open range; 0: none
  uint64_t last_begun;  // event id of the last range that had begun in the thread
  int64_t time_ns;      // Unix nanoseconds
  int64_t duration_ns;  // the time that it stands for
  int64_t since_ns;     // since when nothing had begun or ended in the thread
  uint32_t name, thread, context;
  uint32_t waits_for;        // a name: what the thread waits for; an empty one: it works
  uint32_t item;             // a name: the index of the item that a DataLoader makes; empty: none
  bool is_directly_in_span;  // no range is open around it but a step
  bool is_in_operator;       // the thread waits in an operator, whose time it is
};

constexpr auto fields_of(const Sample*) {
  return std::array{RECFN_FIELD(Sample, parent),
                    RECFN_FIELD(Sample, last_begun),
                    RECFN_FIELD(Sample, time_ns),
                    RECFN_FIELD(Sample, duration_ns),
                    RECFN_FIELD(Sample, since_ns),
                    RECFN_FIELD(Sample, name),
                    RECFN_FIELD(Sample, thread),
                    RECFN_FIELD(Sample, context),
                    RECFN_FIELD(Sample, waits_for),
                    RECFN_FIELD(Sample, item),
                    RECFN_FIELD(Sample, is_directly_in_span),
                    RECFN_FIELD(Sample, is_in_operator)};
}

// One that is not placed yet.
struct NewSample {
  uint64_t position;  // of the thread's ring
  uint64_t ticks;
  int64_t duration_ns;
  std::string name, waits_for, item;
};

// A thread that has recorded nothing for a millisecond.
struct QuietThread {
  uint64_t number, ident, native_id;
  uint64_t position;  // of its ring
  int64_t duration_ns;
  int64_t quiet_ns;  // how long looks have found it there
  // What clocks say of the last part of that time. 0: they say nothing.
  int64_t interval_ns;  // how long it is
  int64_t worked_ns;    // the thread's own work
  int64_t coreless_ns;  // for how long it waited for a core
  int64_t others_ns;    // the work of the process's other threads
  uint64_t busiest;     // the native id of that which worked most
};

constexpr auto fields_of(const QuietThread*) {
  return std::array{RECFN_FIELD(QuietThread, number),      RECFN_FIELD(QuietThread, ident),
                    RECFN_FIELD(QuietThread, native_id),   RECFN_FIELD(QuietThread, position),
                    RECFN_FIELD(QuietThread, duration_ns), RECFN_FIELD(QuietThread, quiet_ns),
                    RECFN_FIELD(QuietThread, interval_ns), RECFN_FIELD(QuietThread, worked_ns),
                    RECFN_FIELD(QuietThread, coreless_ns), RECFN_FIELD(QuietThread, others_ns),
                    RECFN_FIELD(QuietThread, busiest)};
}

// How far a thread has come, as other threads see it.
struct Progress {
  uint64_t position = 0;   // of its ring
  uint64_t unsampled = 0;  // begins that were not recorded, for want of a sampled span
  bool operator==(const Progress& other) const {
    return position == other.position && unsampled == other.unsampled;
  }
};

// What looks at a thread have seen.
struct Looks {
  uint64_t first_position = 0;  // of its ring as looking began: until it records it isn't followed
  Progress progress;            // at the last look
  uint64_t since = 0;           // in ticks: the look that found it there first
  uint64_t ticks = 0;           // of the last look, or of its sample
};

}  // namespace recfn
