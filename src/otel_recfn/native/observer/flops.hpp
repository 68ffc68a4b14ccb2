// Floating point operations of an operator, from its inputs: of the operators that torch.profiler
// counts (with_flops), and as it counts them (torch/csrc/profiler/util.cpp, computeFlops). Scalars
// such as addmm's alpha and beta are taken as 1.
//
//   add, mul              the elements of the first input
//   mm, bmm, addmm, ...   2 x elements of the left one x columns of the right one
//   conv2d                2 x elements of the output x those of one kernel
#pragma once
#include <ATen/core/ivalue.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "observer/input_words.hpp"

namespace recfn {

namespace flops {

constexpr uint64_t kMultiplyAndAdd = 2;

// The plain sizes of an input; false where it is no tensor, or one without plain sizes.
template <typename Inputs>
bool read_sizes(const Inputs& inputs, size_t index, c10::IntArrayRef& sizes) {
  if (index >= inputs.size() || !inputs[index].isTensor()) return false;
  const auto& tensor = inputs[index].toTensor();
  if (!has_plain_sizes(tensor)) return false;
  sizes = tensor.sizes();
  return true;
}

inline uint64_t product(c10::IntArrayRef sizes) {
  uint64_t result = 1;
  for (const int64_t size : sizes) result *= static_cast<uint64_t>(size);
  return result;
}

template <typename Inputs>
uint64_t element_flops(const Inputs& inputs) {
  c10::IntArrayRef sizes;
  return read_sizes(inputs, 0, sizes) ? product(sizes) : 0;
}

// A matrix product of the inputs `first` and `first + 1`, or a batch of products: a multiplication
// and an addition for each pair of an element of the left one and a column of the right one.
template <typename Inputs>
uint64_t matmul_flops(const Inputs& inputs, size_t first, bool batched) {
  c10::IntArrayRef left, right;
  if (!read_sizes(inputs, first, left) || !read_sizes(inputs, first + 1, right) || left.empty()) {
    return 0;
  }
  const auto shared_by_both =
      static_cast<uint64_t>(left.back()) * static_cast<uint64_t>(batched ? left.front() : 1);
  if (shared_by_both == 0) return 0;
  return kMultiplyAndAdd * (product(left) / shared_by_both) * product(right);
}

using Pair = std::array<int64_t, 2>;

// Padding may be a word ("same"), which torch.profiler doesn't count.
template <typename Value>
bool read_pair(const Value& input, Pair& pair) {
  if (!input.isIntList()) return false;
  const auto list = input.toIntList();
  if (list.size() != pair.size()) return false;
  pair = {list.get(0), list.get(1)};
  return true;
}

// Inputs of aten::conv2d: input, weight, bias, stride, padding, dilation, groups.
template <typename Inputs>
uint64_t conv2d_flops(const Inputs& inputs) {
  c10::IntArrayRef input, kernel;
  Pair stride, padding, dilation;
  if (inputs.size() < 7 || !read_sizes(inputs, 0, input) || !read_sizes(inputs, 1, kernel))
    return 0;
  if (input.size() != 4 || kernel.size() != 4 || !inputs[6].isInt() || inputs[6].toInt() == 0) {
    return 0;
  }
  if (!read_pair(inputs[3], stride) || !read_pair(inputs[4], padding) ||
      !read_pair(inputs[5], dilation)) {
    return 0;
  }
  if (stride[0] == 0 || stride[1] == 0) return 0;
  uint64_t products = static_cast<uint64_t>(input[0]) * static_cast<uint64_t>(input[1]) *
                      product(kernel) / (kernel[1] != 0 ? static_cast<uint64_t>(kernel[1]) : 1);
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t reach = dilation[axis] * (kernel[2 + axis] - 1) + 1;
    products *=
        static_cast<uint64_t>((input[2 + axis] + 2 * padding[axis] - reach) / stride[axis] + 1);
  }
  return kMultiplyAndAdd * products / static_cast<uint64_t>(inputs[6].toInt());
}

template <typename Inputs>
struct Counted {
  const char* name;
  uint64_t (*count)(const Inputs&);
};

template <typename Inputs>
constexpr Counted<Inputs> kCounted[] = {
    {"add", element_flops},
    {"mul", element_flops},
    {"mm", [](const Inputs& inputs) { return matmul_flops(inputs, 0, false); }},
    {"addmm", [](const Inputs& inputs) { return matmul_flops(inputs, 1, false); }},
    {"bmm", [](const Inputs& inputs) { return matmul_flops(inputs, 0, true); }},
    {"baddbmm", [](const Inputs& inputs) { return matmul_flops(inputs, 1, true); }},
    {"conv2d", conv2d_flops},
};

}  // namespace flops

// 0 where the operator is not counted. May throw what reading the inputs throws.
template <typename Inputs>
int64_t count_flops(const char* name, const Inputs& inputs) {
  constexpr char kNamespace[] = "aten::";
  constexpr size_t kNamespaceSize = sizeof kNamespace - 1;
  if (std::strncmp(name, kNamespace, kNamespaceSize) != 0) return 0;
  for (const auto& counted : flops::kCounted<Inputs>) {
    if (std::strcmp(name + kNamespaceSize, counted.name) == 0) {
      return static_cast<int64_t>(counted.count(inputs));
    }
  }
  return 0;
}

}  // namespace recfn
