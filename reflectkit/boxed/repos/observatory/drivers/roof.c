/* Roof of the observatory: a small machine of states, polled twice a second.
 *
 * The roof needs about 74 seconds for its way. It may only move when the
 * telescope is parked, because the open tube is higher than the gable.
 */
#include <stdbool.h>

#define TRAVEL_LIMIT_TICKS 190   /* 95 seconds, then the motor is cut */
#define REST_TICKS 30            /* pause before the direction is changed */

enum roof_state { ROOF_CLOSED, ROOF_OPENING, ROOF_OPEN, ROOF_CLOSING, ROOF_RESTING, ROOF_FAULT };

struct roof {
    enum roof_state state;
    int ticks;
};

struct roof_inputs {
    bool parked;        /* both park switches of the mount are pressed */
    bool north_end;     /* limit switch on the north rail */
    bool south_end;     /* limit switch above the door */
    bool want_open;
    bool rain;
};

/* One step of the machine; rain wins over every wish to open. */
enum roof_state roof_tick(struct roof *roof, const struct roof_inputs *in)
{
    bool open = in->want_open && !in->rain;

    roof->ticks++;
    switch (roof->state) {
    case ROOF_CLOSED:
        if (open && in->parked) { roof->state = ROOF_OPENING; roof->ticks = 0; }
        break;
    case ROOF_OPEN:
        if (!open && in->parked) { roof->state = ROOF_CLOSING; roof->ticks = 0; }
        break;
    case ROOF_OPENING:
        if (in->north_end) roof->state = ROOF_OPEN;
        else if (roof->ticks > TRAVEL_LIMIT_TICKS || !in->parked) roof->state = ROOF_FAULT;
        else if (!open) { roof->state = ROOF_RESTING; roof->ticks = 0; }
        break;
    case ROOF_CLOSING:
        if (in->south_end) roof->state = ROOF_CLOSED;
        else if (roof->ticks > TRAVEL_LIMIT_TICKS || !in->parked) roof->state = ROOF_FAULT;
        break;
    case ROOF_RESTING:
        if (roof->ticks >= REST_TICKS) { roof->state = ROOF_CLOSING; roof->ticks = 0; }
        break;
    case ROOF_FAULT:
        break;  /* only the key switch in the pier room leaves this state */
    }
    return roof->state;
}
