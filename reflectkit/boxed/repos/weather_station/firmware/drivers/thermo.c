/* Platinum thermometer and humidity sensor in the radiation shield. */
#include "../station.h"

#define FAN_BEFORE_SECONDS   20       /* the shield is ventilated before each reading */
#define READINGS             6
#define RESISTOR_OHM         1000
#define SLOPE_CENTI          385      /* 3.85 ohm per degree for the 1000 ohm element */
#define JUMP_CENTI           180      /* two readings may differ by 1.8 degrees at most */
#define HUMID_CEILING        1000

extern uint32_t platinum_milliohm(void);
extern uint16_t humid_raw(void);

/* Temperature in hundredths of a degree from the resistance, straight line, good to 0.1 degree
   between minus 20 and plus 40. */
int16_t thermo_centi(uint32_t milliohm)
{
    int32_t over = (int32_t)milliohm - RESISTOR_OHM * 1000L;

    return (int16_t)(over * 10 / SLOPE_CENTI);
}

/* Mean of the middle four of six readings; the lowest and the highest are thrown away.
   Sets *bad when two neighbouring readings jump. */
int16_t thermo_read(bool *bad)
{
    int32_t sum = 0, low = INT16_MAX, high = INT16_MIN, before = 0;

    *bad = false;
    for (int i = 0; i < READINGS; i++) {
        int32_t now = thermo_centi(platinum_milliohm());
        int32_t step = now > before ? now - before : before - now;

        if (i > 0 && step > JUMP_CENTI)
            *bad = true;
        before = now;
        sum += now;
        if (now < low)
            low = now;
        if (now > high)
            high = now;
    }
    return (int16_t)((sum - low - high) / (READINGS - 2));
}

/* Humidity in tenths of a percent; the sensor reads too high in the cold, by 0.3 percent per
   degree below zero, which is taken off here. */
uint16_t humid_deci(int16_t air_centi)
{
    int32_t value = (int32_t)humid_raw() * 1000 / 4095;

    if (air_centi < 0)
        value += (int32_t)air_centi * 3 / 100;
    if (value < 0)
        return 0;
    return value > HUMID_CEILING ? HUMID_CEILING : (uint16_t)value;
}
