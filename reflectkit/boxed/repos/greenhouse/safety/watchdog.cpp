// The watchdog: brings a hung board back and leaves the house in a safe state.
#include <cstdint>

namespace glasswing {

// State that survives a restart because it lies in battery-backed memory.
struct Survivor {
    std::uint32_t magic;
    std::uint16_t restarts;
    std::uint32_t last_restart_minute;
};

enum class Stand { Normal, Careful, Locked };

namespace {

constexpr std::uint32_t kMagic = 0x61A55;
constexpr int kFeedWithinSeconds = 100;
constexpr int kCarefulFrom = 3;               // restarts within the window
constexpr int kLockedFrom = 6;
constexpr std::uint32_t kWindowMinutes = 90;

}  // namespace

// Called at start. Counts restarts that follow each other within 90 minutes. From the
// third on the board is careful (no gas, no lamps), from the sixth it is locked and only
// holds the frost guard until somebody presses the green button.
Stand after_restart(Survivor& s, std::uint32_t minute) {
    if (s.magic != kMagic) s = {kMagic, 0, minute};
    if (minute - s.last_restart_minute > kWindowMinutes) s.restarts = 0;
    ++s.restarts;
    s.last_restart_minute = minute;
    if (s.restarts >= kLockedFrom) return Stand::Locked;
    return s.restarts >= kCarefulFrom ? Stand::Careful : Stand::Normal;
}

// Places of the outputs when nothing can be trusted: vents open by a tenth, the heating
// valve at thirty percent, water off, lamps off, gas off.
struct SafePlaces {
    double vent = 10.0;
    double heat = 30.0;
    bool water = false;
    bool lamps = false;
    bool gas = false;
};

// True when the main loop has not reported for a hundred seconds.
bool starving(int seconds_since_feed) { return seconds_since_feed > kFeedWithinSeconds; }

// The green button has to be held for five seconds, so that nobody leans on it.
bool unlock(int held_seconds) { return held_seconds >= 5; }

}  // namespace glasswing
