/* Main loop of the station: sleeps, wakes up on the tick of the clock and runs what is due. */
#include <stdint.h>
#include <stdbool.h>
#include "station.h"

#define TICK_SECONDS        2
#define WATCHDOG_TICKS      4      /* eight seconds without a kick restart the board */
#define SAVE_BUTTON_TICKS   3      /* hold the button for six seconds to close the card */
#define FIRST_RUN_BLINKS    7

static uint32_t ticks;
static uint8_t  button_held;

/* One job of the station: runs when ticks is a multiple of 'every', shifted by 'offset'. */
struct job {
    uint16_t every;
    uint16_t offset;
    void   (*run)(void);
};

static const struct job jobs[] = {
    {   1, 0, sample_wind },       /* every 2 s */
    {  15, 3, sample_air  },       /* every 30 s, not in the same tick as the radio */
    { 150, 7, close_record },      /* every 5 minutes */
    { 900, 9, radio_report },      /* every 30 minutes */
};

static bool due(const struct job *j)
{
    return ticks % j->every == j->offset % j->every;
}

/* Called from the clock interrupt; does nothing but count and wake the loop. */
void on_tick(void)
{
    ticks++;
}

/* The save button must be held; a short press only lights the lamp for the visitor. */
static void watch_button(void)
{
    button_held = save_pressed() ? (uint8_t)(button_held + 1) : 0;
    if (button_held == SAVE_BUTTON_TICKS)
        log_close_card();
}

int main(void)
{
    uint32_t seen = 0;

    board_init(WATCHDOG_TICKS * TICK_SECONDS);
    blink(FIRST_RUN_BLINKS);
    for (;;) {
        board_sleep();
        if (ticks == seen)
            continue;
        seen = ticks;
        board_kick();
        watch_button();
        for (unsigned i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
            if (due(&jobs[i]))
                jobs[i].run();
    }
}
