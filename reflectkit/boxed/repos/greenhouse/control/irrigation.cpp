// Drip irrigation: start by light sum, check by drain, stop before the evening.
#include <algorithm>

namespace glasswing {

// What is known about the watering of one row group today.
struct WaterState {
    double joules_since_last = 0.0;   // J/cm2 of light since the last round
    int minutes_since_last = 0;
    double given_ml = 0.0;            // per plant, today
    double drained_ml = 0.0;
    double slab_weight_loss = 0.0;    // percent since the last round
};

struct WaterWish {
    bool start;
    double ml;
};

namespace {

constexpr double kJoulesPerRound = 85.0;
constexpr double kRoundMl = 110.0;
constexpr int kLeastMinutes = 18;
constexpr int kMostMinutes = 240;
constexpr int kFirstAfterSunrise = 95;
constexpr int kLastBeforeSunset = 130;
constexpr double kDrainLow = 0.18;
constexpr double kDrainHigh = 0.32;
constexpr double kSlabThirst = 5.5;

}  // namespace

// The share of water that ran out of the slab, or -1 before the first round.
double drain_share(const WaterState& s) {
    return s.given_ml > 0 ? s.drained_ml / s.given_ml : -1.0;
}

// A round starts when 85 joules have come in, or the slab has lost 5.5 percent, or four
// hours went by; never sooner than 18 minutes after the last one and never outside the
// window of the day. A low drain makes the round a fifth larger, a high one a quarter
// smaller.
WaterWish irrigate(const WaterState& s, int minute, int sunrise, int sunset) {
    if (minute < sunrise + kFirstAfterSunrise) return {false, 0.0};
    if (minute > sunset - kLastBeforeSunset) return {false, 0.0};
    if (s.minutes_since_last < kLeastMinutes) return {false, 0.0};
    const bool due = s.joules_since_last >= kJoulesPerRound
        || s.slab_weight_loss >= kSlabThirst || s.minutes_since_last >= kMostMinutes;
    if (!due) return {false, 0.0};
    double ml = kRoundMl;
    const double share = drain_share(s);
    if (share >= 0 && share < kDrainLow) ml *= 1.2;
    if (share > kDrainHigh) ml *= 0.75;
    return {true, ml};
}

}  // namespace glasswing
