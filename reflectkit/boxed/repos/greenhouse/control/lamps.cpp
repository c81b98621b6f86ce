// Growing lamps: fill up the light sum of the day without paying peak prices.
#include <algorithm>

namespace glasswing {

struct LampInput {
    double light_sum_mol;     // mol/m2 so far today
    double expected_mol;      // still to come from the sun, by the forecast
    double target_mol;
    double price_cents;       // per kilowatt hour, now
    int minute_of_day;
    int switched_today;
    bool on;
    int minutes_in_state;
};

namespace {

constexpr double kLampMolPerHour = 0.52;      // what the lamps give
constexpr int kEarliest = 2 * 60 + 30;        // 02:30
constexpr int kLatest = 20 * 60 + 15;         // 20:15; plants need six dark hours
constexpr double kPriceStop = 31.0;
constexpr double kPriceResume = 27.0;
constexpr int kLeastOnMinutes = 25;           // sodium lamps must burn in
constexpr int kLeastOffMinutes = 12;          // and cool before they restart
constexpr int kMostSwitches = 8;

}  // namespace

// Hours of lamp light that are still missing today.
double hours_missing(const LampInput& in) {
    const double gap = in.target_mol - in.light_sum_mol - in.expected_mol;
    return std::max(0.0, gap / kLampMolPerHour);
}

// Whether the lamps should burn. Once they burn they go on for at least 25 minutes,
// whatever the price does; above 31 cents they are put out, and come back under 27.
bool lamps_wanted(const LampInput& in) {
    if (in.minute_of_day < kEarliest || in.minute_of_day >= kLatest) return false;
    if (in.on && in.minutes_in_state < kLeastOnMinutes) return true;
    if (!in.on && in.minutes_in_state < kLeastOffMinutes) return false;
    if (!in.on && in.switched_today >= kMostSwitches) return false;
    const double limit = in.on ? kPriceStop : kPriceResume;
    if (in.price_cents > limit) return false;
    return hours_missing(in) > 0.25;
}

}  // namespace glasswing
