/* Battery and solar panel: decides what may run when the sun has not been seen for days. */
#include <stdint.h>
#include <stdbool.h>

#define MV_FULL        13600
#define MV_SAVE        11900      /* below: no heater, fan at half speed */
#define MV_SILENT      11500      /* below: no radio except one report at noon */
#define MV_SLEEP       11050      /* below: nothing but rain and clock */
#define HYSTERESIS_MV  250
#define LOAD_OHM       47
#define PANEL_CUT_C    45         /* charging stops above this battery temperature */

enum level { LEVEL_NORMAL, LEVEL_SAVE, LEVEL_SILENT, LEVEL_SLEEP };

static enum level level = LEVEL_NORMAL;

static enum level level_for(uint16_t mv)
{
    if (mv < MV_SLEEP)
        return LEVEL_SLEEP;
    if (mv < MV_SILENT)
        return LEVEL_SILENT;
    if (mv < MV_SAVE)
        return LEVEL_SAVE;
    return LEVEL_NORMAL;
}

/* Going down happens at once, going up only with a quarter of a volt to spare. The voltage is
   measured while a resistor of 47 ohm is switched on for a moment. */
enum level power_update(uint16_t mv)
{
    enum level now = level_for(mv);

    if (now > level)
        level = now;
    else if (now < level && level_for((uint16_t)(mv - HYSTERESIS_MV)) < level)
        level = level_for((uint16_t)(mv - HYSTERESIS_MV));
    return level;
}

bool power_may_heat(void)
{
    return level == LEVEL_NORMAL;
}

bool power_may_send(uint8_t hour)
{
    return level < LEVEL_SILENT || (level == LEVEL_SILENT && hour == 12);
}

/* Charge unless the battery is full or hot; frost is no reason to stop, the box is lined. */
bool power_may_charge(uint16_t mv, int8_t battery_celsius)
{
    return mv < MV_FULL && battery_celsius <= PANEL_CUT_C;
}
