// Carbon dioxide dosing from the tank behind the shed.
#include <algorithm>

namespace glasswing {

struct GasInput {
    double ppm;
    double light_w_m2;
    double vent_percent;      // mean of both sides
    double tank_kg;
    bool person_inside;       // from the badge at the door
};

namespace {

constexpr double kBase = 420.0;               // just the air outside
constexpr double kFull = 850.0;               // target in bright light, vents shut
constexpr double kLightFrom = 70.0;
constexpr double kLightFull = 450.0;
constexpr double kVentStop = 35.0;            // percent above which we stop
constexpr double kPersonLimit = 1100.0;       // ppm
constexpr double kReserveKg = 60.0;
constexpr double kGramsPerPpm = 0.46;         // for house A, which has 780 cubic metres
constexpr double kMostGramsPerMinute = 95.0;

}  // namespace

// The wanted concentration rises in a straight line from 70 to 450 W/m2 and sinks in a
// straight line to the outside value while the vents open to 35 percent.
double gas_target(double light, double vent_percent) {
    if (light < kLightFrom || vent_percent >= kVentStop) return kBase;
    const double by_light = std::min(1.0, (light - kLightFrom) / (kLightFull - kLightFrom));
    const double by_vent = 1.0 - vent_percent / kVentStop;
    return kBase + (kFull - kBase) * by_light * by_vent;
}

// Grams per minute for the coming minute. Nothing is dosed when the tank is down to its
// reserve, which belongs to the seedlings in spring, or when a person is inside and the
// air is already above 1100 ppm.
double gas_dose(const GasInput& in) {
    if (in.tank_kg <= kReserveKg) return 0.0;
    if (in.person_inside && in.ppm > kPersonLimit) return 0.0;
    const double gap = gas_target(in.light_w_m2, in.vent_percent) - in.ppm;
    return std::clamp(gap * kGramsPerPpm, 0.0, kMostGramsPerMinute);
}

}  // namespace glasswing
