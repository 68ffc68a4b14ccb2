// A vector that somebody else owns from here on, whatever its items are. It needs no memory beside the vector's own.
#pragma once
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace recfn {

class OwnedVector {
 public:
  template <typename T, typename Allocator>
  OwnedVector(std::vector<T, Allocator>&& items) noexcept  // NOLINT(google-explicit-constructor)
      : data_(items.data()), bytes_(items.size() * sizeof(T)), relocate_(&relocate<std::vector<T, Allocator>>) {
    static_assert(sizeof(items) == sizeof(place_), "vectors of all types are laid out alike");
    new (place_) std::vector<T, Allocator>(std::move(items));
  }
  OwnedVector(OwnedVector&& other) noexcept : data_(other.data_), bytes_(other.bytes_), relocate_(other.relocate_) {
    relocate_(other.place_, place_);
    other.data_ = nullptr, other.bytes_ = 0;
  }
  OwnedVector(const OwnedVector&) = delete;
  OwnedVector& operator=(const OwnedVector&) = delete;
  OwnedVector& operator=(OwnedVector&&) = delete;
  ~OwnedVector() { relocate_(place_, nullptr); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  // Moves the vector there, which leaves an empty one; without a place it ends.
  template <typename Vector>
  static void relocate(void* from, void* to) {
    auto* items = static_cast<Vector*>(from);
    if (to == nullptr) {
      items->~Vector();
    } else {
      new (to) Vector(std::move(*items));
    }
  }

  void* data_;
  size_t bytes_;
  void (*relocate_)(void* from, void* to);
  alignas(std::vector<char>) unsigned char place_[sizeof(std::vector<char>)];
};

}  // namespace recfn
