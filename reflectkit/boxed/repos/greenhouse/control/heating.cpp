// The heating loop: from set point to pipe temperature.
#include "heating.h"

#include <algorithm>

namespace glasswing {

namespace {

constexpr double kRampPerMinute = 1.0 / 20;   // one degree in twenty minutes
constexpr double kLightStart = 200.0;         // W/m2 above which the set point rises
constexpr double kLightBonusPer100 = 0.4;
constexpr double kLightBonusMost = 2.0;
constexpr double kPipeMost = 72.0;            // hotter pipes would scorch the low leaves
constexpr double kPipeLeast = 28.0;
constexpr double kPumpOnAbove = 31.0;
constexpr double kPumpOffBelow = 28.5;

}  // namespace

// By day the set point rises with light, 0.4 degrees per 100 W/m2 and two at most. In
// the minutes after sunrise the drop holds instead.
double Heating::wanted(int minute, double light) const {
    const bool day = minute >= plan_.sunrise_minute && minute < plan_.sunset_minute;
    if (!day) {
        const int gone = minute - plan_.sunset_minute;
        if (gone < 0) return plan_.night;
        return std::max(plan_.night, plan_.day - gone * kRampPerMinute);
    }
    const int since = minute - plan_.sunrise_minute;
    if (since < plan_.drop_minutes) return plan_.drop;
    const double ramp = plan_.drop + (since - plan_.drop_minutes) * kRampPerMinute;
    const double bonus = std::clamp((light - kLightStart) / 100 * kLightBonusPer100,
                                    0.0, kLightBonusMost);
    return std::min(plan_.day + bonus, ramp);
}

// 0.9 degrees of pipe per degree of frost, 1.3 per m/s of wind; a closed screen takes
// off a third of both.
double Heating::weather_share(double outside, double wind, bool screen_closed) {
    const double share = std::max(0.0, -outside) * 0.9 + wind * 1.3;
    return screen_closed ? share * 2 / 3 : share;
}

HeatWish Heating::step(const HeatInput& in) {
    const double goal = wanted(in.minute_of_day, in.light_w_m2);
    const double percent = pid_.step(goal, in.air, 0.5);
    double pipe = kPipeLeast + percent / 100 * (kPipeMost - kPipeLeast);
    if (percent > 0) pipe += weather_share(in.outside, in.wind_m_s, in.screen_closed);
    pipe = std::min(pipe, kPipeMost);
    // The pump has its own hysteresis, so that it does not chatter.
    if (pipe > kPumpOnAbove) pump_ = true;
    if (pipe < kPumpOffBelow) pump_ = false;
    return {pipe, pump_};
}

}  // namespace glasswing
