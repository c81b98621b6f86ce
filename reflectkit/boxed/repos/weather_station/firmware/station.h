/* Declarations shared by the parts of the firmware. */
#ifndef STATION_H
#define STATION_H

#include <stdint.h>
#include <stdbool.h>

/* Layout of one record in the log: 22 bytes, little endian, no gaps. */
struct __attribute__((packed)) record {
    uint32_t minute;        /* minutes since the first of January 2010, station time */
    int16_t  air_centi;     /* air temperature, hundredths of a degree */
    uint16_t humid_deci;    /* relative humidity, tenths of a percent */
    uint16_t wind_mean;     /* mean wind of five minutes, centimetres per second */
    uint16_t wind_gust;     /* largest running mean, centimetres per second */
    uint8_t  wind_dir;      /* direction in steps of 1.5 degrees, 0 to 239, 255 calm */
    uint16_t rain_tips;     /* tips of the bucket since midnight */
    uint16_t press_deci;    /* air pressure, tenths of a hectopascal */
    uint16_t battery_mv;    /* battery under load, millivolts */
    uint8_t  flags;         /* see below */
    uint16_t check;         /* checksum over all bytes before it */
};

#define FLAG_HEATER_ON   0x01
#define FLAG_CARD_NEW    0x02
#define FLAG_CLOCK_SET   0x04
#define FLAG_DOOR_OPEN   0x08   /* cabin door, wired at Crag Top only */
#define FLAG_SENSOR_BAD  0x10

void board_init(uint16_t watchdog_seconds);
void board_sleep(void);
void board_kick(void);
void blink(uint8_t times);
bool save_pressed(void);

void sample_wind(void);
void sample_air(void);
void close_record(void);
void radio_report(void);

void log_close_card(void);
bool log_write(const struct record *r);
uint16_t check16(const uint8_t *bytes, uint16_t count);

#endif
