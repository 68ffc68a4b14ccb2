// Kinds, flags, sources and scopes of events.
// Written by scripts/generate_model.py; change model/events.py and run it.
#pragma once
#include <cstdint>
#include <string_view>

namespace recfn {

enum RowKind : uint8_t {
  kRangeRow = 0,
  kMarkRow = 1,
  kMemoryRow = 2,
};

// The lowest ones of an event id: which begin of its thread it was. The others are the thread's
// number.
constexpr uint32_t kOrdinalBits = 40;

enum EventFlag : uint32_t {
  kAsync = 1,
  kError = 2,
  kStaticRuntimeOutVariant = 4,
  kNcclMeta = 8,
  kPartial = 16,
  kExposed = 64,
  kEvaluation = 128,
  kCrossing = 256,
  kInCompilation = 512,
  kParentElsewhere = 1024,
  kBeginsStep = 2048,
};

// A row with one of these may overlap what is beside it in its thread.
constexpr uint32_t kOverlapping = 257;

enum EventSource : uint32_t {
  kTorchSource = 0,
  kRecordFunctionSource = 1,
  kModuleSource = 2,
  kStepSource = 3,
  kPythonCallSource = 4,
  kCompilationSource = 5,
};

enum ContextFlag : uint64_t {
  kSampledContext = 1,
  kSuppressedContext = 2,
  kStepContext = 4,
};

// Sources whose rows are recorded whatever their scope, a bit each.
constexpr uint32_t kSourcesWithoutScopes =
    1u << kModuleSource | 1u << kStepSource | 1u << kPythonCallSource;

// Of each source, what names of calls of Python code begin with; null where it announces none.
constexpr const char* kCallPrefixes[] = {nullptr, nullptr, "nn.Module: ", nullptr, "", nullptr};

// The beginnings of names of ranges that say where training steps are.
constexpr const char* kOptimizer = "Optimizer.";
constexpr const char* kOptimizerStep = "Optimizer.step#";
constexpr const char* kProfilerStep = "ProfilerStep#";

// Limits of traces that we start (stage/own_traces.hpp).
constexpr uint32_t kMaxTraceRanges = 100000;
constexpr int64_t kLongestTraceNs = 10000000000;

// A shorter time of waiting isn't reported.
constexpr int64_t kMinWaitNs = 1000000;

// What PyTorch puts before the name of a backward node to name the range around it.
constexpr std::string_view kNodesPrefix = "autograd::engine::evaluate_function: ";

enum Extra : uint32_t {
  kShapesExtra = 1,
  kFlopsExtra = 2,
  kStackExtra = 4,
  kMemoryExtra = 8,
  kSamplesExtra = 16,
};

enum RecordScope : uint32_t {
  kFunctionScope = 0,
  kBackwardFunctionScope = 1,
  kTorchscriptFunctionScope = 2,
  kKernelFunctionDtypeScope = 3,
  kCustomClassScope = 4,
  kBuildFeatureScope = 5,
  kLiteInterpreterScope = 6,
  kUserScope = 7,
  kStaticRuntimeOpScope = 8,
  kStaticRuntimeModelScope = 9,
};

constexpr uint32_t kNumScopes = 10;

// The name of each scope.
// clang-format off
constexpr const char* kScopeNames[kNumScopes] = {
    "FUNCTION",
    "BACKWARD_FUNCTION",
    "TORCHSCRIPT_FUNCTION",
    "KERNEL_FUNCTION_DTYPE",
    "CUSTOM_CLASS",
    "BUILD_FEATURE",
    "LITE_INTERPRETER",
    "USER_SCOPE",
    "STATIC_RUNTIME_OP",
    "STATIC_RUNTIME_MODEL",
};

// The name of each source.
constexpr const char* kSourceNames[] = {
    "TORCH",
    "RECORD_FUNCTION",
    "MODULE",
    "STEP",
    "PYTHON_CALL",
    "COMPILATION",
};
// clang-format on

}  // namespace recfn
