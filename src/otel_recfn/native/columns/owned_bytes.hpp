// Bytes that stay where they are as long as this object lives: of a vector, which is its own then, or of memory that it shares.
// It needs no memory of its own.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace recfn {

class OwnedBytes {
 public:
  template <typename T, typename Allocator>
  OwnedBytes(std::vector<T, Allocator>&& items) noexcept  // NOLINT(google-explicit-constructor)
      : OwnedBytes(items.data(), items.size() * sizeof(T), std::move(items)) {}
  OwnedBytes(std::shared_ptr<void> owner, void* first, size_t bytes) noexcept : OwnedBytes(first, bytes, std::move(owner)) {}
  OwnedBytes(OwnedBytes&& other) noexcept : first_(other.first_), bytes_(other.bytes_), relocate_(other.relocate_) {
    relocate_(other.place_, place_);
    other.first_ = nullptr, other.bytes_ = 0;
  }
  OwnedBytes(const OwnedBytes&) = delete;
  OwnedBytes& operator=(const OwnedBytes&) = delete;
  OwnedBytes& operator=(OwnedBytes&&) = delete;
  ~OwnedBytes() { relocate_(place_, nullptr); }

  void* first() const { return first_; }
  size_t size() const { return bytes_; }

 private:
  template <typename Owner>
  OwnedBytes(void* first, size_t bytes, Owner&& owner) noexcept : first_(first), bytes_(bytes), relocate_(&relocate<Owner>) {
    static_assert(sizeof(Owner) <= sizeof(place_) && alignof(Owner) <= alignof(std::max_align_t), "vectors are the largest owners");
    new (place_) Owner(std::move(owner));
  }

  // Moves the owner there, which leaves an empty one; without a place it ends.
  template <typename Owner>
  static void relocate(void* from, void* to) {
    auto* owner = static_cast<Owner*>(from);
    if (to == nullptr) {
      owner->~Owner();
    } else {
      new (to) Owner(std::move(*owner));
    }
  }

  void* first_;
  size_t bytes_;
  void (*relocate_)(void* from, void* to);
  alignas(std::max_align_t) unsigned char place_[sizeof(std::vector<char>)];
};

}  // namespace recfn
