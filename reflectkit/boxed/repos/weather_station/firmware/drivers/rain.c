/* Tipping bucket rain gauge: counts tips, suppresses bounces, watches for a blocked funnel. */
#include <stdint.h>
#include <stdbool.h>

#define MICROLITRES_PER_TIP   4000
#define FUNNEL_CM2            200      /* so that one tip is 0.2 mm of rain */
#define BOUNCE_MS             110
#define BLOCKED_TIPS          2
#define BLOCKED_HUMID_DECI    985
#define BLOCKED_HOURS         10
#define SPIDER_MS             600000UL /* tips closer than this in dry air are a spider */

static uint16_t tips_today;
static uint32_t last_tip_ms;
static uint8_t  wet_hours;

/* Interrupt of the reed switch. A second closing within 110 ms is the bucket bouncing. */
void rain_on_switch(uint32_t now_ms)
{
    if (now_ms - last_tip_ms < BOUNCE_MS)
        return;
    last_tip_ms = now_ms;
    tips_today++;
}

/* At midnight of station time the count starts again and the sum of the day is returned. */
uint16_t rain_midnight(void)
{
    uint16_t tips = tips_today;

    tips_today = 0;
    return tips;
}

/* Rain of the day in hundredths of a millimetre. */
uint32_t rain_centi_mm(void)
{
    return (uint32_t)tips_today * (MICROLITRES_PER_TIP / FUNNEL_CM2);
}

/* Called once an hour: after ten hours in saturated air with hardly a tip, a leaf sits on the
   funnel. The office sees the flag and sends somebody with a brush. */
bool rain_blocked(uint16_t humid_deci, uint16_t tips_this_hour)
{
    if (humid_deci >= BLOCKED_HUMID_DECI && tips_this_hour < BLOCKED_TIPS)
        wet_hours++;
    else
        wet_hours = 0;
    return wet_hours >= BLOCKED_HOURS;
}

/* Two tips within ten minutes at a humidity below 40 percent are not rain. */
bool rain_is_spider(uint32_t gap_ms, uint16_t humid_deci)
{
    return gap_ms < SPIDER_MS && humid_deci < 400;
}
