// How the fields begin that the native encoder writes: their numbers as OTLP's trace.proto and common.proto give them, with what
// Protocol Buffers' wire format says of the type.
#pragma once
#include <cstdint>

namespace recfn {

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

constexpr uint32_t field_tag(uint32_t number, WireType type) { return number << 3 | static_cast<uint32_t>(type); }

namespace tags {

namespace scope_spans {
constexpr uint32_t kSpans = field_tag(2, WireType::kLengthDelimited);
}

namespace span {
constexpr uint32_t kTraceId = field_tag(1, WireType::kLengthDelimited);
constexpr uint32_t kSpanId = field_tag(2, WireType::kLengthDelimited);
constexpr uint32_t kParentSpanId = field_tag(4, WireType::kLengthDelimited);
constexpr uint32_t kName = field_tag(5, WireType::kLengthDelimited);
constexpr uint32_t kKind = field_tag(6, WireType::kVarint);
constexpr uint32_t kStartTime = field_tag(7, WireType::kFixed64);
constexpr uint32_t kEndTime = field_tag(8, WireType::kFixed64);
constexpr uint32_t kAttributes = field_tag(9, WireType::kLengthDelimited);
constexpr uint32_t kEvents = field_tag(11, WireType::kLengthDelimited);
constexpr uint32_t kLinks = field_tag(13, WireType::kLengthDelimited);
constexpr uint32_t kStatus = field_tag(15, WireType::kLengthDelimited);
constexpr uint32_t kFlags = field_tag(16, WireType::kFixed32);
}  // namespace span

namespace event {
constexpr uint32_t kTime = field_tag(1, WireType::kFixed64);
constexpr uint32_t kName = field_tag(2, WireType::kLengthDelimited);
}  // namespace event

namespace link {
constexpr uint32_t kTraceId = field_tag(1, WireType::kLengthDelimited);
constexpr uint32_t kSpanId = field_tag(2, WireType::kLengthDelimited);
constexpr uint32_t kFlags = field_tag(6, WireType::kFixed32);
}  // namespace link

namespace key_value {
constexpr uint32_t kKey = field_tag(1, WireType::kLengthDelimited);
constexpr uint32_t kValue = field_tag(2, WireType::kLengthDelimited);
}  // namespace key_value

namespace any_value {
constexpr uint32_t kBool = field_tag(2, WireType::kVarint);
constexpr uint32_t kInt = field_tag(3, WireType::kVarint);
}  // namespace any_value

}  // namespace tags
}  // namespace recfn
