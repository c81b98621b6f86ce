// Main loop of one house: snapshot, wishes, arbitration, outputs.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

constexpr int kCycleSeconds = 30;
constexpr int kWarmupCycles = 6;      // outputs stay off while sensors settle
constexpr int kExitBadHouse = 12;
constexpr int kExitTooManyMisses = 13;
constexpr int kMissesBeforeExit = 10;

struct Options {
    char house = 'A';
    bool simulate = false;
    int speedup = 1;                  // only with --simulate, at most 120
};

// Reads the words of the command line. An unknown word is passed over silently,
// because the boot script of the oldest board adds one that nobody can remove.
Options parse(int argc, char** argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--simulate") == 0) o.simulate = true;
        else if (std::strncmp(argv[i], "--house=", 8) == 0) o.house = argv[i][8];
        else if (std::strncmp(argv[i], "--speedup=", 10) == 0) o.speedup = std::atoi(argv[i] + 10);
    }
    if (o.speedup < 1 || o.speedup > 120 || !o.simulate) o.speedup = 1;
    return o;
}

// One cycle; false when the snapshot could not be taken.
bool cycle(const Options& o, int number) {
    const bool warm = number >= kWarmupCycles;
    std::printf("house %c cycle %d outputs %s\n", o.house, number, warm ? "on" : "held");
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const Options o = parse(argc, argv);
    if (o.house < 'A' || o.house > 'C') {
        std::fprintf(stderr, "there is no house %c\n", o.house);
        return kExitBadHouse;
    }
    int misses = 0;
    for (int number = 0;; ++number) {
        // Ten missed snapshots in a row end the program; the watchdog restarts it.
        misses = cycle(o, number) ? 0 : misses + 1;
        if (misses >= kMissesBeforeExit) return kExitTooManyMisses;
        std::this_thread::sleep_for(std::chrono::milliseconds(1000 * kCycleSeconds / o.speedup));
    }
}
