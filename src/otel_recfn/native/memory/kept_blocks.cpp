#include "memory/kept_blocks.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <new>

namespace recfn {
namespace {

constexpr size_t kMostKeptBytes = size_t{48} << 20;
constexpr unsigned kSizes = 10;  // each twice the one before
constexpr size_t kMostOfASize = 64;

struct Place {
  std::atomic<void*> block{nullptr};
  std::atomic<uint64_t> since{0};  // how many blocks had been kept before it
};

std::atomic<bool> keeps{false};
std::atomic<size_t> kept_bytes{0};
std::atomic<uint64_t> times_kept{0};
std::array<std::array<Place, kMostOfASize>, kSizes> kept{};

constexpr size_t size_of(unsigned index) { return (2 * kLargeBlock) << index; }

// kSizes where it is larger than all of them.
unsigned size_index(size_t bytes) {
  unsigned index = 0;
  while (index < kSizes && size_of(index) < bytes) ++index;
  return index;
}

void* taken(Place& place, unsigned index) noexcept {
  void* block = place.block.load() != nullptr ? place.block.exchange(nullptr) : nullptr;
  if (block != nullptr) kept_bytes.fetch_sub(size_of(index));
  return block;
}

// Always from the first place that has one: what is not needed any more grows old in the others.
void* taken(unsigned index) noexcept {
  for (Place& place : kept[index]) {
    if (void* block = taken(place, index)) return block;
  }
  return nullptr;
}

bool put(void* block, unsigned index) noexcept {
  for (Place& place : kept[index]) {
    void* none = nullptr;
    if (!place.block.compare_exchange_strong(none, block)) continue;
    place.since.store(++times_kept);
    return true;
  }
  return false;
}

// False where there is none.
bool free_oldest() noexcept {
  uint64_t since = UINT64_MAX;
  Place* oldest = nullptr;
  unsigned size = 0;
  for (unsigned index = 0; index < kSizes; ++index) {
    for (Place& place : kept[index]) {
      if (place.block.load() == nullptr || place.since.load() >= since) continue;
      oldest = &place, size = index, since = place.since.load();
    }
  }
  if (oldest != nullptr) ::operator delete(taken(*oldest, size));
  return oldest != nullptr;
}

bool keep(void* block, unsigned index) noexcept {
  if (index >= kSizes || !keeps.load()) return false;
  const size_t size = size_of(index);
  bool fits = kept_bytes.fetch_add(size) + size <= kMostKeptBytes;
  while (!fits && free_oldest()) fits = kept_bytes.load() <= kMostKeptBytes;
  if (fits && put(block, index)) return true;
  kept_bytes.fetch_sub(size);
  return false;
}

void free_all() noexcept {
  for (unsigned index = 0; index < kSizes; ++index) {
    while (void* block = taken(index)) ::operator delete(block);
  }
}

}  // namespace

void* take_block(size_t bytes) {
  const unsigned index = size_index(bytes);
  if (index >= kSizes) return ::operator new(bytes);
  if (void* block = taken(index)) return block;
  return ::operator new(size_of(index));
}

void give_back_block(void* block, size_t bytes) noexcept {
  if (!keep(block, size_index(bytes))) return ::operator delete(block);
  if (!keeps.load()) free_all();  // they ceased to be wanted meanwhile
}

void keep_blocks(bool wanted) noexcept {
  keeps.store(wanted);
  if (!wanted) free_all();
}

}  // namespace recfn
