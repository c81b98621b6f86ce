// Roof vents: open against heat and damp, close against wind, rain and frost.
#include <algorithm>
#include <cmath>

namespace glasswing {

struct VentInput {
    double air;
    double wanted;
    double outside;
    double humidity;      // percent
    double wind_m_s;
    bool rain;
    bool lee;             // true for the side away from the wind
};

namespace {

constexpr double kDeadBand = 1.2;             // degrees over the set point, vents shut
constexpr double kPercentPerDegree = 14.0;
constexpr double kDampFrom = 87.0;
constexpr double kDampOpening = 9.0;          // percent, a mere crack
constexpr double kRainLimit = 12.0;           // percent that rain leaves open
constexpr double kWindHalf = 9.0;             // m/s: windward side shut, lee side halved
constexpr double kWindShut = 15.5;            // m/s: everything shut
constexpr double kFrostShut = -3.0;
constexpr double kSmallestMove = 4.0;         // smaller moves are not worth the motor

}  // namespace

// Opening in percent. Heat and damp ask for openings, the larger one wins; then wind,
// rain and frost cut it down, in this order. In frost the crack against damp goes too:
// grey mould is better than frozen tips.
double vent_opening(const VentInput& in) {
    double open = 0.0;
    const double over = in.air - in.wanted - kDeadBand;
    if (over > 0) {
        // The colder it is outside, the less opening does the same work.
        const double spread = std::max(2.0, in.air - in.outside);
        open = over * kPercentPerDegree * 10.0 / spread;
    }
    if (in.humidity > kDampFrom) open = std::max(open, kDampOpening);
    open = std::min(open, 100.0);

    if (in.wind_m_s >= kWindShut) return 0.0;
    if (in.wind_m_s >= kWindHalf) open = in.lee ? open / 2 : 0.0;
    if (in.rain) open = std::min(open, kRainLimit);
    if (in.outside < kFrostShut) return 0.0;
    return open;
}

// Whether the motor should move at all; closing fully is always allowed.
bool worth_moving(double now, double wish) {
    return wish == 0.0 ? now > 0.0 : std::fabs(wish - now) >= kSmallestMove;
}

}  // namespace glasswing
