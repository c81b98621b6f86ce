// Alarms: what is one, how loud it is, and how long it may be silenced.
#include <string>
#include <vector>

namespace glasswing {

enum class Loudness { Note, Lamp, Siren };

struct Alarm {
    std::string name;
    Loudness loudness;
    int after_minutes;        // how long the state must last
    int silence_minutes;      // how long the button keeps it quiet
};

// The list is short on purpose: an alarm that sounds too often is not heard.
const std::vector<Alarm>& alarms() {
    static const std::vector<Alarm> list = {
        {"frost", Loudness::Siren, 2, 10},
        {"heat", Loudness::Siren, 8, 20},
        {"boiler fault", Loudness::Siren, 4, 30},
        {"gas with person", Loudness::Siren, 0, 0},
        {"vent stuck", Loudness::Lamp, 15, 120},
        {"no drain", Loudness::Lamp, 180, 360},
        {"probe lost", Loudness::Note, 30, 1440},
        {"tank low", Loudness::Note, 60, 2880},
    };
    return list;
}

// Frost is air under 4.5 degrees, with seedlings in the house under 9.
bool frost(double air, bool seedlings) { return air < (seedlings ? 9.0 : 4.5); }

// Heat is air over 38, or leaf over 34, since a leaf that hot has stopped to breathe.
bool heat(double air, double leaf) { return air > 38.0 || leaf > 34.0; }

// The alarm that is shown when several are on: the loudest, then the first of the list.
const Alarm* shown(const std::vector<const Alarm*>& on) {
    const Alarm* best = nullptr;
    for (const Alarm* a : on) {
        if (!best || a->loudness > best->loudness) best = a;
    }
    return best;
}

// At night (22:00 to 05:30) notes are kept for the morning. Lamps and sirens are not.
bool held_back(const Alarm& a, int minute_of_day) {
    const bool night = minute_of_day >= 22 * 60 || minute_of_day < 5 * 60 + 30;
    return night && a.loudness == Loudness::Note;
}

}  // namespace glasswing
