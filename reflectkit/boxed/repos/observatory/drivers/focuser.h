/* Focuser of the large reflector: constants and functions of the C helper.
 *
 * The motor has 200 full steps for a turn and the screw moves the tube by
 * 1.25 mm in a turn. Positions are counted in half steps from the inner stop.
 */
#ifndef FOCUSER_H
#define FOCUSER_H

/* Greatest position; beyond it the corrector would touch the spider. */
#define FOCUS_MAX 18400L

/* Half steps that are lost when the direction is changed. */
#define FOCUS_BACKLASH 46L

/* The tube shrinks in the cold: half steps for each degree of temperature. */
#define FOCUS_PER_DEGREE 13.5

/* Codes returned by the functions. */
enum focus_result {
    FOCUS_OK = 0,
    FOCUS_RANGE = 1,
    FOCUS_STALLED = 2,
    FOCUS_NO_POWER = 3
};

struct focus_state {
    long position;       /* half steps from the inner stop */
    int last_direction;  /* +1 outwards, -1 inwards, 0 after power up */
    double temperature;  /* of the tube at the last focus run */
};

/* Work out the steps of a move, with the lost steps added. */
long focus_steps(const struct focus_state *state, long wanted);

/* Move to a position. The final approach is always outwards. */
enum focus_result focus_move(struct focus_state *state, long wanted);

/* Position that makes up for a change of temperature. */
long focus_compensated(const struct focus_state *state, double now);

#endif
