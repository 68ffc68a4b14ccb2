// An operator's inputs as shape words (see shapes.hpp), on the stack of its thread: no allocation.
#pragma once
#include <cstdint>

#include "core/record.hpp"
#include "core/shapes.hpp"
#include "observer/plain_sizes.hpp"
#include "pytorch/range_details.hpp"

namespace recfn {

constexpr bool kHasKinds = compiles<const c10::IValue&>([](const auto& value) -> decltype(
    value.isScalar(), value.isTensorList(), value.toTensorList().begin(), value.toTensor().scalar_type(), void()) {});
constexpr bool kHasNumbers = compiles<const c10::IValue&>([](const auto& value) -> decltype(
    value.isBool(), bool{value.toBool()}, value.isInt(), int64_t{value.toInt()}, value.isDouble(), double{value.toDouble()},
    value.isComplexDouble(), double{value.toComplexDouble().imag()}, value.isList(), value.toListRef().front().isScalar(),
    void()) {});
constexpr bool kHasShapes = kTold<decltype(details::inputs)> && kHasPlainSizes && kHasKinds;

template <typename Value>
Scalar scalar_of(const Value& value) {
  if constexpr (kHasNumbers) {
    if (value.isInt()) return integer_scalar(value.toInt());
    if (value.isDouble()) return {kReal, 0, 1, {bits_of(value.toDouble())}};
    if (value.isBool()) return {kBoolean, value.toBool() ? 1u : 0u, 0, {}};
    if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      return {kComplex, 0, 2, {bits_of(number.real()), bits_of(number.imag())}};
    }
  }
  return {};  // a symbol
}

class ShapeWords {
 public:
  template <typename Inputs>
  void add_inputs(const Inputs& inputs) {
    for (const auto& input : inputs) add(input);
  }
  const uint64_t* data() const { return words_; }
  uint32_t size() const { return size_; }

 private:
  static constexpr uint32_t kMaxDims = 64;

  template <typename Value>
  void add(const Value& input) {
    if (input.isTensor()) return add_tensor(input.toTensor());
    if (input.isTensorList()) return add_list(input);
    if (input.isScalar()) return add_scalar(input);
    if constexpr (kHasNumbers) {
      if (input.isList()) return add_scalars(input.toListRef());
    }
    put(shape_tag(kOther, 0, 0));
  }

  template <typename Value>
  void add_scalar(const Value& input) {
    if (!has_room(kMostWordsOfScalar)) return truncate();
    write(scalar_of(input));
  }

  // Of a list of something else nothing is told, and of a long one.
  template <typename Values>
  void add_scalars(const Values& values) {
    const bool told = values.empty() || (values.front().isScalar() && values.size() <= kMostScalars);
    if (!told) return put(shape_tag(kOther, 0, 0));
    if (!has_room(1 + static_cast<uint32_t>(values.size()) * kMostWordsOfScalar)) return truncate();
    words_[size_++] = shape_tag(kScalarsBegin, 0, 0);
    for (const auto& value : values) write(scalar_of(value));
    words_[size_++] = shape_tag(kListEnd, 0, 0);
  }

  void write(const Scalar& scalar) {
    words_[size_++] = shape_tag(kScalar, scalar.kind, scalar.size) | uint64_t{scalar.small} << 32;
    for (uint32_t word = 0; word < scalar.size; ++word) words_[size_++] = scalar.words[word];
  }

  template <typename Value>
  void add_list(const Value& input) {
    if (!has_room(1)) return truncate();
    words_[size_++] = shape_tag(kListBegin, 0, 0);
    const auto list = input.toTensorList();
    for (const at::Tensor& tensor : list) add_tensor(tensor);
    words_[size_++] = shape_tag(kListEnd, 0, 0);
  }

  template <typename Tensor>
  void add_tensor(const Tensor& tensor) {
    if (!tensor.defined()) return put(shape_tag(kOther, 0, 0));
    const auto dtype = static_cast<uint64_t>(tensor.scalar_type());
    if (!has_plain_sizes(tensor)) return put(shape_tag(kTensor, dtype, 0));
    const auto sizes = tensor.sizes();
    const auto dims = static_cast<uint32_t>(sizes.size() < kMaxDims ? sizes.size() : kMaxDims);
    if (!has_room(1 + dims)) return truncate();
    words_[size_++] = shape_tag(kTensor, dtype, dims);
    for (uint32_t dim = 0; dim < dims; ++dim) words_[size_++] = static_cast<uint64_t>(sizes[dim]);
  }

  void put(uint64_t tag) {
    if (!has_room(1)) return truncate();
    words_[size_++] = tag;
  }

  // Nothing is told after something was left out: it would stand in the place of another input.
  bool has_room(uint32_t words) const { return !truncated_ && size_ + words + kReserve <= kMaxShapeWords; }

  void truncate() {
    if (!truncated_) words_[size_++] = shape_tag(kTruncated, 0, 0);
    truncated_ = true;
  }

  static constexpr uint32_t kMostWordsOfScalar = 1 + kMostScalarWords;
  static constexpr uint32_t kReserve = 2;  // for the mark of truncation and a list's end
  uint64_t words_[kMaxShapeWords];
  uint32_t size_ = 0;
  bool truncated_ = false;
};

}  // namespace recfn
