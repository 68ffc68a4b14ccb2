// An operator's inputs as shape words (see shapes.hpp), on the stack of its thread: no allocation.
#pragma once
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstdint>

#include "core/shapes.hpp"

namespace recfn {

// The sizes of a tensor as plain numbers. Nested, symbolic and undefined tensors have none.
inline bool has_plain_sizes(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !tensor.is_nested();
}

template <typename Value>
Scalar read_scalar(const Value& value) {
  if (value.isInt()) return {kInteger, 1, {static_cast<uint64_t>(value.toInt())}};
  if (value.isDouble()) return {kReal, 1, {as_bits(value.toDouble())}};
  if (value.isBool()) return {kBoolean, 1, {value.toBool()}};
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return {kComplex, 2, {as_bits(number.real()), as_bits(number.imag())}};
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
  template <typename Value>
  void add(const Value& input) {
    if (input.isTensor()) return add_tensor(input.toTensor());
    if (input.isTensorList()) {
      return add_list(kListBegin, input.toTensorList(),
                      [this](const at::Tensor& one) { add_tensor(one); });
    }
    if (input.isScalar()) return add_scalar(input);
    if (input.isList() && are_numbers(input.toListRef())) {
      return add_list(kScalarsBegin, input.toListRef(),
                      [this](const auto& one) { add_scalar(one); });
    }
    put(shape_tag(kOther, 0, 0));
  }

  // Only short lists of numbers are recorded.
  template <typename Values>
  static bool are_numbers(const Values& values) {
    return values.empty() || (values.front().isScalar() && values.size() <= kMaxScalars);
  }

  template <typename Values, typename Add>
  void add_list(ShapeKind kind, const Values& values, const Add& add_one) {
    put(shape_tag(kind, 0, 0));
    if (truncated_) return;
    for (const auto& value : values) add_one(value);
    words_[size_++] = shape_tag(kListEnd, 0, 0);
  }

  template <typename Value>
  void add_scalar(const Value& input) {
    const Scalar scalar = read_scalar(input);
    put(shape_tag(kScalar, scalar.kind, scalar.size), scalar.words, scalar.size);
  }

  template <typename Tensor>
  void add_tensor(const Tensor& tensor) {
    if (!tensor.defined()) return put(shape_tag(kOther, 0, 0));
    const auto dtype = static_cast<uint64_t>(tensor.scalar_type());
    if (!has_plain_sizes(tensor)) return put(shape_tag(kTensor, dtype, 0));
    const auto sizes = tensor.sizes();
    const auto dims = static_cast<uint32_t>(sizes.size() < kMaxDims ? sizes.size() : kMaxDims);
    put(shape_tag(kTensor, dtype, dims), sizes.data(), dims);
  }

  // Stops at the first input that is left out, so that later inputs keep their positions.
  template <typename Word = uint64_t>
  void put(uint64_t tag, const Word* words = nullptr, uint32_t count = 0) {
    if (truncated_) return;
    truncated_ = size_ + 1 + count + kReserve > kMaxShapeWords;
    words_[size_++] = truncated_ ? shape_tag(kTruncated, 0, 0) : tag;
    for (uint32_t word = 0; !truncated_ && word < count; ++word) {
      words_[size_++] = static_cast<uint64_t>(words[word]);
    }
  }

  static constexpr uint32_t kMaxDims = 64;
  static constexpr uint32_t kReserve = 2;  // for the mark of truncation and a list's end
  uint64_t words_[kMaxShapeWords];
  uint32_t size_ = 0;
  bool truncated_ = false;
};

}  // namespace recfn
