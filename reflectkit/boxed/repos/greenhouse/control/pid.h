// A PID controller as used by the heating loop, with the usual safeguards.
#pragma once

#include <algorithm>

namespace glasswing {

// Gains of one loop. The output is in percent of the valve's way.
struct Gains {
    double proportional;   // percent per degree
    double integral;       // percent per degree and minute
    double derivative;     // percent per (degree per minute)
};

// Gains found by Teun with the step test in February. House B answers more slowly,
// because its pipes lie under the benches.
constexpr Gains kHouseA{7.5, 0.22, 3.0};
constexpr Gains kHouseB{5.2, 0.13, 4.4};
constexpr Gains kHouseC{9.0, 0.31, 1.5};

class Pid {
public:
    explicit Pid(Gains gains) : gains_(gains) {}

    // One step. The integral stops growing while the output is at an end of its way
    // (anti-windup), and the derivative acts on the measured value, not on the error,
    // so that a new set point gives no kick.
    double step(double wanted, double measured, double minutes) {
        const double error = wanted - measured;
        const double slope = first_ ? 0.0 : (measured - last_) / minutes;
        const double raw = gains_.proportional * error + sum_ - gains_.derivative * slope;
        const double out = std::clamp(raw, kLeast, kMost);
        if (raw == out) {
            sum_ += gains_.integral * error * minutes;
            sum_ = std::clamp(sum_, -kSumLimit, kSumLimit);
        }
        last_ = measured;
        first_ = false;
        return out;
    }

    // Forget the past, for instance after manual mode.
    void reset() { sum_ = 0.0; first_ = true; }

private:
    static constexpr double kLeast = 0.0;
    static constexpr double kMost = 100.0;
    static constexpr double kSumLimit = 65.0;
    Gains gains_;
    double sum_ = 0.0;
    double last_ = 0.0;
    bool first_ = true;
};

}  // namespace glasswing
