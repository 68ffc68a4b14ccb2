// Appends text and numbers to memory that is known to suffice: kSlack bytes more than what is
// written.
//
// Short texts are copied in blocks of a fixed size, which the compiler turns into two moves; what
// is copied too much is written over by what follows. Numbers are formatted eight digits at a time,
// in one register.
#pragma once
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace recfn {

constexpr size_t kSlack = 32;

class ChromeWriter {
 public:
  explicit ChromeWriter(char* begin) : begin_(begin), cursor_(begin) {}

  template <size_t N>
  void literal(const char (&text)[N]) {
    std::memcpy(cursor_, text, N - 1);
    cursor_ += N - 1;
  }
  // kSlack bytes can be read from the text's beginning.
  void text(std::string_view text) {
    std::memcpy(cursor_, text.data(), kSlack);
    if (text.size() > kSlack) {
      std::memcpy(cursor_ + kSlack, text.data() + kSlack, text.size() - kSlack);
    }
    cursor_ += text.size();
  }

  void number(uint64_t value) {
    if (value < kTenTo8) return leading(value);
    if (value >= kTenTo8 * kTenTo8) {
      leading(value / (kTenTo8 * kTenTo8));
      all_eight(value / kTenTo8 % kTenTo8);
    } else {
      leading(value / kTenTo8);
    }
    all_eight(value % kTenTo8);
  }
  void number(int64_t value) { number(magnitude(value)); }
  template <size_t N, typename Number>
  void argument(const char (&key)[N], Number value) {
    literal(key);
    number(value);
  }
  void hex(uint64_t value) { cursor_ = std::to_chars(cursor_, cursor_ + 16, value, 16).ptr; }

  // Nanoseconds as microseconds with three decimals.
  void microseconds(int64_t nanoseconds) {
    const uint64_t value = magnitude(nanoseconds);
    number(value / 1000);
    const unsigned remainder = static_cast<unsigned>(value % 1000);
    *cursor_++ = '.';
    *cursor_++ = static_cast<char>('0' + remainder / 100);
    *cursor_++ = static_cast<char>('0' + remainder / 10 % 10);
    *cursor_++ = static_cast<char>('0' + remainder % 10);
  }

  size_t size() const { return static_cast<size_t>(cursor_ - begin_); }

 private:
  static constexpr uint64_t kTenTo8 = 100'000'000;

  uint64_t magnitude(int64_t value) {
    if (value >= 0) return static_cast<uint64_t>(value);
    *cursor_++ = '-';
    return 0 - static_cast<uint64_t>(value);
  }

  // The eight decimal digits of a number below 10^8 as bytes 0 to 9, the first in the lowest byte:
  // the number is split into two halves of four digits, each of these into two of two, each of
  // these into two of one, all side by side. The factors are 2^20 / 100 and 2^10 / 10, rounded up;
  // exact for numbers of four and of two digits.
  static uint64_t digits(uint64_t value) {
    const uint64_t fours = value / 10'000 | value % 10'000 << 32;
    const uint64_t hundreds = (fours * 10'486 >> 20) & 0x0000'007F'0000'007F;
    const uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
    const uint64_t tens = (twos * 103 >> 10) & 0x000F'000F'000F'000F;
    return tens | (twos - 10 * tens) << 8;
  }

  void leading(uint64_t value) {
    const uint64_t eight = digits(value);
    // The last digit stays, also of 0.
    const int zeros = __builtin_ctzll(eight | uint64_t{1} << 56) / 8;
    store(eight >> 8 * zeros);
    cursor_ += 8 - zeros;
  }
  void all_eight(uint64_t value) {
    store(digits(value));
    cursor_ += 8;
  }
  void store(uint64_t eight) {
    eight += 0x3030'3030'3030'3030;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    eight = __builtin_bswap64(eight);
#endif
    std::memcpy(cursor_, &eight, sizeof eight);
  }

  char* begin_;
  char* cursor_;
};

}  // namespace recfn
