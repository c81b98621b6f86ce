// Layout of the radio messages between the boards and the shed.
#pragma once

#include <cstdint>

namespace glasswing::radio {

// First byte of every message.
enum class Kind : std::uint8_t {
    Snapshot = 0x11,
    Alarm = 0x22,
    SetPoint = 0x33,
    Pairing = 0x44,
    Goodnight = 0x55,     // sent once by the shed before it shuts down
};

constexpr int kLargestPayload = 46;
constexpr int kAlarmRepeats = 5;
constexpr int kAlarmGapSeconds = 4;
constexpr int kAcknowledgeMilliseconds = 380;
constexpr int kLostAfterMinutes = 11;

// Header of ten bytes. The counter runs to 4095 and begins again at 1; zero means that
// the board has just started.
#pragma pack(push, 1)
struct Header {
    Kind kind;
    std::uint8_t house;           // 'A', 'B' or 'C'
    std::uint16_t counter;
    std::uint32_t minutes;        // since the first of January of this year
    std::uint8_t length;
    std::uint8_t battery;         // tenths of a volt
};
#pragma pack(pop)

static_assert(sizeof(Header) == 10, "the shed expects ten bytes");

// Whether a message is a repetition that was seen before. Snapshots are dropped when
// repeated, alarms never are.
inline bool is_repeat(const Header& now, const Header& before) {
    return now.kind != Kind::Alarm && now.house == before.house
        && now.counter == before.counter && now.minutes == before.minutes;
}

// Next counter, skipping zero.
inline std::uint16_t next(std::uint16_t counter) {
    return counter >= 4095 ? 1 : static_cast<std::uint16_t>(counter + 1);
}

}  // namespace glasswing::radio
