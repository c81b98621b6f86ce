/* Focuser of the large reflector: moving the motor.
 *
 * A move inwards goes 120 half steps too far and comes back, so that the
 * screw always pushes the tube and gravity cannot let it sag.
 */
#include "focuser.h"

#define OVERSHOOT 120L
#define STALL_MILLIAMPS 870

/* Given by the board: do the steps and return the highest current seen. */
extern int board_step(long steps);
extern int board_has_power(void);

long focus_steps(const struct focus_state *state, long wanted)
{
    long steps = wanted - state->position;
    int direction = steps > 0 ? 1 : -1;

    if (steps != 0 && state->last_direction != 0 && direction != state->last_direction)
        steps += direction * FOCUS_BACKLASH;
    return steps;
}

static enum focus_result go(struct focus_state *state, long wanted)
{
    long steps = focus_steps(state, wanted);

    if (steps == 0)
        return FOCUS_OK;
    if (board_step(steps) > STALL_MILLIAMPS)
        return FOCUS_STALLED;
    state->last_direction = steps > 0 ? 1 : -1;
    state->position = wanted;
    return FOCUS_OK;
}

enum focus_result focus_move(struct focus_state *state, long wanted)
{
    if (!board_has_power())
        return FOCUS_NO_POWER;
    if (wanted < OVERSHOOT || wanted > FOCUS_MAX)
        return FOCUS_RANGE;
    if (wanted < state->position) {
        enum focus_result first = go(state, wanted - OVERSHOOT);
        if (first != FOCUS_OK)
            return first;
    }
    return go(state, wanted);
}

long focus_compensated(const struct focus_state *state, double now)
{
    double shift = (now - state->temperature) * FOCUS_PER_DEGREE;

    /* changes of less than ten half steps are not worth a move */
    if (shift < 10.0 && shift > -10.0)
        return state->position;
    return state->position - (long)shift;
}
