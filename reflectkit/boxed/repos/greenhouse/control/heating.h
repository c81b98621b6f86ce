// Interface of the heating loop.
#pragma once

#include "pid.h"

namespace glasswing {

// What the heating loop needs to know of a snapshot. Temperatures in degrees Celsius.
struct HeatInput {
    double air;              // mean of the probes at plant height
    double outside;
    double wind_m_s;
    double light_w_m2;
    int minute_of_day;
    bool screen_closed;
};

// The wish of the loop.
struct HeatWish {
    double pipe_celsius;     // temperature of the water in the pipes
    bool pump_on;
};

// Set points of one day. A "drop" is the cold hour after sunrise that keeps the plants
// short; growers call it DIF.
struct HeatPlan {
    double day;
    double night;
    double drop;
    int drop_minutes;
    int sunrise_minute;
    int sunset_minute;
};

class Heating {
public:
    Heating(Gains gains, HeatPlan plan) : pid_(gains), plan_(plan) {}

    // The set point of this minute, with ramps between night and day.
    double wanted(int minute_of_day, double light_w_m2) const;

    // One step of the loop, called once a cycle.
    HeatWish step(const HeatInput& in);

    // Degrees that the pipe gets on top because of wind and cold.
    static double weather_share(double outside, double wind_m_s, bool screen_closed);

private:
    Pid pid_;
    HeatPlan plan_;
    bool pump_ = false;
};

}  // namespace glasswing
