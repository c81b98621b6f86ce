/* The log: records are collected in a page of memory and written to the card page by page. */
#include <string.h>
#include "station.h"

#define PAGE_BYTES       512
#define RECORDS_PER_PAGE (PAGE_BYTES / sizeof(struct record))   /* 23, six bytes stay empty */
#define MAX_RETRIES      5
#define CARD_FULL_LEFT   40        /* pages kept free for the closing notes */

extern bool     card_write_page(uint32_t number, const uint8_t *page);
extern uint32_t card_pages(void);

static uint8_t  page[PAGE_BYTES];
static uint8_t  in_page;
static uint32_t next_page = 1;     /* page 0 carries the name of the station */

/* Checksum: start at 0xA5C3, rotate left by three, add the byte. */
uint16_t check16(const uint8_t *bytes, uint16_t count)
{
    uint16_t sum = 0xA5C3;

    while (count--) {
        sum = (uint16_t)((sum << 3) | (sum >> 13));
        sum = (uint16_t)(sum + *bytes++);
    }
    return sum;
}

/* Write the page; after five failures the page is skipped, so that one bad spot costs one page. */
static bool flush(void)
{
    for (uint8_t attempt = 0; attempt < MAX_RETRIES; attempt++) {
        if (card_write_page(next_page, page)) {
            next_page++;
            in_page = 0;
            memset(page, 0xFF, sizeof page);
            return true;
        }
    }
    next_page++;
    return false;
}

/* Add a record. When the card is nearly full the newest data are dropped, never the oldest. */
bool log_write(const struct record *r)
{
    if (next_page + CARD_FULL_LEFT >= card_pages())
        return false;
    memcpy(page + in_page * sizeof *r, r, sizeof *r);
    in_page++;
    if (in_page == RECORDS_PER_PAGE)
        return flush();
    return true;
}

/* The visitor has pressed SAVE: write the half-filled page and blink once per 50 pages. */
void log_close_card(void)
{
    if (in_page > 0)
        flush();
    blink((uint8_t)(next_page / 50));
}
