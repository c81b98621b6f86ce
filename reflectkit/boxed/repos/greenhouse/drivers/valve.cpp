// Motor valves: way, running time, and finding out that one is stuck.
#include <cmath>
#include <string>

namespace glasswing {

// A three-way mixing valve without position feedback; its place is reckoned from the
// time it was driven.
class Valve {
public:
    explicit Valve(std::string name) : name_(std::move(name)) {}

    // Seconds to drive for a wanted place. Positive opens. Moves of less than two
    // percent are saved up. At both ends the motor is driven eight seconds longer, which
    // sets the reckoned place right again.
    double drive_seconds(double wanted_percent) const {
        const double way = wanted_percent - place_;
        if (std::fabs(way) < kLeastWay && wanted_percent > 0 && wanted_percent < 100) return 0.0;
        double seconds = way / 100 * kFullWaySeconds;
        if (wanted_percent <= 0) seconds -= kOverdrive;
        if (wanted_percent >= 100) seconds += kOverdrive;
        return seconds;
    }

    // Tell the valve that it was driven. After 400 moves it asks to be driven home.
    void moved_to(double percent) {
        place_ = percent;
        ++moves_;
    }

    bool wants_home() const { return moves_ >= kMovesUntilHome; }

    void home() {
        place_ = 0.0;
        moves_ = 0;
    }

    // Stuck: it was opened by at least 25 percent, and after six minutes the pipe behind
    // it is not even one and a half degrees warmer.
    static bool stuck(double opened_percent, double minutes, double pipe_rise) {
        return opened_percent >= 25.0 && minutes >= 6.0 && pipe_rise < 1.5;
    }

    const std::string& name() const { return name_; }

private:
    static constexpr double kFullWaySeconds = 140.0;
    static constexpr double kLeastWay = 2.0;
    static constexpr double kOverdrive = 8.0;
    static constexpr int kMovesUntilHome = 400;
    std::string name_;
    double place_ = 0.0;
    int moves_ = 0;
};

}  // namespace glasswing
