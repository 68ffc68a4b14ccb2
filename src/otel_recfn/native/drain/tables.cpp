// The tables that rows index: which threads, names and contexts stand in them, and for how long.
#include "drain/drain.hpp"

#include <algorithm>
#include <utility>

namespace recfn {
namespace {

constexpr size_t kCompactContextsAbove = 16;  // what reads a batch looks at every context

template <typename Visit>
void each_text(FullRow& row, const Visit& visit) {
#define RECFN_VISIT(type, name, empty) visit(row.name);
  RECFN_USUAL_TEXT_COLUMNS(RECFN_VISIT)
#undef RECFN_VISIT
  if (!row.seldom) return;
#define RECFN_VISIT(type, name, empty) visit(row.seldom->name);
  RECFN_SELDOM_TEXT_COLUMNS(RECFN_VISIT)
#undef RECFN_VISIT
}

}  // namespace

void Drain::meet_new_threads() {
  for (ThreadBuffer* buffer : registry().snapshot()) {
    if (buffer->met) continue;
    Thread added{};
    added.buffer = buffer;
    added.dictionary.assign(kNameSlots + 1, 0);
    added.dictionary[kManyNamesSlot] = names_.intern("<many names>");
    threads_.push_back(std::move(added));
    buffer->met = true;
  }
}

// One that ends later may yet end a range for another thread, which then says that it was this one.
void Drain::note_ended() {
  for (Thread& thread : threads_) thread.has_ended = thread.buffer->ended.load(std::memory_order_acquire);
}

// Lists the threads that rows of this drain may refer to, because thousands of others may have recorded nothing. Also reserves
// memory for all rows that are to be expected: growing step by step would copy them.
void Drain::list_threads() {
  uint64_t expected = 0;
  for (Thread& thread : threads_) {
    const ThreadBuffer& buffer = *thread.buffer;
    const uint64_t unread = buffer.published.load(std::memory_order_acquire) - buffer.consumed.load(std::memory_order_relaxed);
    if (unread != 0 || !thread.open.empty()) list(thread);
    if (unread == 0) continue;
    const uint64_t unended = thread.open.size() + buffer.ordinal.load(std::memory_order_relaxed) - thread.ordinal;
    expected += std::min(unended, unread / kEndWords);  // what stays open is no row
  }
  const uint64_t meanwhile = expected / 16;  // more begin and end until their rings are read
  if (expected != 0) out_.rows.reserve(expected + meanwhile);
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
  return otherwise;  // it is gone
}

// A thread that ended is forgotten when everything it wrote was read, and neither does a range of it wait for another thread's end
// nor an end of it for another thread's range.
void Drain::retire_ended() {
  const auto finished = [this](Thread& thread) {
    ThreadBuffer& buffer = *thread.buffer;
    if (!thread.has_ended || !thread.open.empty() || has_ended_for_others(thread)) return false;
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
      for (OpenRange& range : thread.open) each_text(range.row, visit);
      each_text(thread.pending, visit);
      visit(thread.left_by.error), visit(thread.left_by.stacktrace);
    }
  };
  std::vector<bool> kept(names_.size());
  each_reference([&kept](uint32_t index) { kept[index] = true; });
  const std::vector<uint32_t> moved = names_.start_epoch(kept);
  each_reference([&moved](uint32_t& index) { index = moved[index]; });
}

std::vector<std::string> Drain::names_from(uint64_t epoch, size_t known) const {
  std::vector<std::string> names;
  for (size_t at = names_.epoch() == epoch ? known : 0; at < names_.size(); ++at) names.push_back(names_.text(at));
  return names;
}

void Drain::compact_contexts() {
  if (contexts_.size() < kCompactContextsAbove) return;
  const auto each_reference = [this](const auto& visit) {
    for (Thread& thread : threads_) {
      visit(thread.context);
      for (OpenRange& range : thread.open) visit(range.row.context);
      for (ClosedRemotely& closed : thread.closed_remotely) visit(closed.place.context);
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

}  // namespace recfn
