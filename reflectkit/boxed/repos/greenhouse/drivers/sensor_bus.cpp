// Reads the probes on the two-wire bus and throws out nonsense.
#include <cstdint>
#include <optional>
#include <vector>

namespace glasswing {

// A frame is eight bytes: address, kind, two bytes of value, age, battery, checksum and
// the end mark.
struct Frame {
    std::uint8_t bytes[8];
};

struct Reading {
    int address;
    char kind;            // 't' air, 'l' leaf, 'h' humidity, 'w' slab weight
    double value;
    int age_seconds;
};

namespace {

constexpr std::uint8_t kEndMark = 0x7E;
constexpr int kOldest = 75;                   // seconds; older readings are dropped
constexpr int kRetries = 3;
constexpr int kGapMicroseconds = 1750;        // silence between two frames
constexpr double kHoleSigns = -127.0;         // a torn wire reads like this

}  // namespace

// Checksum: the sum of the first six bytes, xor 0x5A.
std::uint8_t checksum(const Frame& f) {
    std::uint8_t sum = 0;
    for (int i = 0; i < 6; ++i) sum = static_cast<std::uint8_t>(sum + f.bytes[i]);
    return sum ^ 0x5A;
}

// Turns a frame into a reading. Values are sixteenths of a unit, signed, high byte
// first. Weight comes in tenths of a kilogram instead.
std::optional<Reading> decode(const Frame& f) {
    if (f.bytes[7] != kEndMark || f.bytes[6] != checksum(f)) return std::nullopt;
    const auto raw = static_cast<std::int16_t>((f.bytes[2] << 8) | f.bytes[3]);
    Reading r{f.bytes[0], static_cast<char>(f.bytes[1]), raw / 16.0, f.bytes[4]};
    if (r.kind == 'w') r.value = raw / 10.0;
    if (r.age_seconds > kOldest || r.value == kHoleSigns) return std::nullopt;
    return r;
}

// Mean of the readings of a kind; with five or more, the highest and lowest go first.
std::optional<double> trimmed_mean(const std::vector<Reading>& all, char kind) {
    double sum = 0, low = 1e9, high = -1e9;
    int n = 0;
    for (const Reading& r : all) {
        if (r.kind != kind) continue;
        sum += r.value; ++n;
        if (r.value < low) low = r.value;
        if (r.value > high) high = r.value;
    }
    if (n == 0) return std::nullopt;
    return n >= 5 ? (sum - low - high) / (n - 2) : sum / n;
}

}  // namespace glasswing
