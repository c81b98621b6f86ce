/* Radio reports to the office: one short packet, repeated until the office answers. */
#include <string.h>
#include "station.h"

#define CHANNEL_DAY        11
#define CHANNEL_NIGHT      4        /* from 21 to 5 o'clock the club of amateurs uses channel 11 */
#define MAX_SENDS          3
#define ANSWER_MS          900
#define SLOT_MS            2500     /* station number times this is the delay after the half hour */
#define QUEUE              12       /* unanswered reports kept, six hours */

extern bool radio_send(uint8_t channel, const void *bytes, uint8_t count);
extern bool radio_answer(uint16_t wait_ms);
extern void wait_ms(uint32_t ms);
extern uint8_t clock_hour(void);
extern uint8_t station_number(void);

static struct record queue[QUEUE];
static uint8_t queued;

uint8_t radio_channel(uint8_t hour)
{
    return (hour >= 21 || hour < 5) ? CHANNEL_NIGHT : CHANNEL_DAY;
}

/* Keep a report for later; when twelve wait already, the oldest one makes room. */
void radio_keep(const struct record *r)
{
    if (queued == QUEUE) {
        memmove(queue, queue + 1, sizeof queue - sizeof queue[0]);
        queued--;
    }
    queue[queued++] = *r;
}

/* Send one record up to three times and say whether the office has answered. */
static bool deliver(const struct record *r)
{
    for (uint8_t i = 0; i < MAX_SENDS; i++) {
        radio_send(radio_channel(clock_hour()), r, sizeof *r);
        if (radio_answer(ANSWER_MS))
            return true;
    }
    return false;
}

/* Each station waits for its own slot, so that no two of them talk at once. The newest report
   goes first, since a warning of a gale is worth more than an old reading. */
void radio_report(void)
{
    wait_ms((uint32_t)station_number() * SLOT_MS);
    while (queued > 0 && deliver(&queue[queued - 1]))
        queued--;
}
