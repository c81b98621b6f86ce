/* Cup anemometer and wind vane: pulses to speed, voltage to direction, gusts. */
#include "../station.h"

#define CM_PER_PULSE      67       /* the cups travel 0.67 m of wind per pulse */
#define START_PULSES      1        /* below one pulse in 2 s the cups stand still */
#define GUST_SAMPLES      2
#define SAMPLES_PER_REC   150
#define VANE_DEAD_LOW     12       /* readings in the dead gap of the ring */
#define VANE_FULL         1012
#define HEATER_BELOW      150      /* vane heater on below 1.50 degrees ... */
#define HEATER_HUMID      920      /* ... if the humidity is above 92.0 percent */

extern uint16_t pulses_and_clear(void);
extern uint16_t vane_reading(void);
extern void     heater(bool on);

static uint32_t sum_cm;
static uint16_t last[GUST_SAMPLES];
static uint16_t gust_cm;
static uint16_t count;

/* Speed in centimetres per second from the pulses of two seconds. */
static uint16_t speed_cm(uint16_t pulses)
{
    if (pulses < START_PULSES)
        return 0;
    return (uint16_t)(pulses * CM_PER_PULSE / 2);
}

/* Sample the wind; the gust is the larger of the running means over two samples. */
void sample_wind(void)
{
    uint16_t now = speed_cm(pulses_and_clear());
    uint16_t mean = (uint16_t)((now + last[0]) / 2);

    last[1] = last[0];
    last[0] = now;
    if (mean > gust_cm)
        gust_cm = mean;
    sum_cm += now;
    count++;
}

/* Mean of the record and reset; called once when a record is closed. */
uint16_t wind_take_mean(uint16_t *gust)
{
    uint16_t mean = count ? (uint16_t)(sum_cm / count) : 0;

    *gust = gust_cm;
    sum_cm = 0;
    gust_cm = 0;
    count = 0;
    return mean;
}

/* Direction in steps of 1.5 degrees; readings in the dead gap count as north. */
uint8_t wind_direction(void)
{
    uint16_t raw = vane_reading();

    if (raw < VANE_DEAD_LOW || raw > VANE_FULL)
        return 0;
    return (uint8_t)((uint32_t)(raw - VANE_DEAD_LOW) * 240 / (VANE_FULL - VANE_DEAD_LOW + 1));
}

/* The vane freezes in cold wet air only, so the heater looks at both. */
void wind_heater(int16_t air_centi, uint16_t humid_deci)
{
    heater(air_centi < HEATER_BELOW && humid_deci > HEATER_HUMID);
}
