package service.booking.policy;

import java.time.DayOfWeek;
import java.util.Map;

/** Overbooking: how many more visits than slots a half day may carry, and where they go. */
public final class Overbooking {
    /** Extra visits by day of the week; Mondays are full of the weekend's coughs. */
    private static final Map<DayOfWeek, Integer> EXTRA = Map.of(
            DayOfWeek.MONDAY, 4,
            DayOfWeek.TUESDAY, 2,
            DayOfWeek.WEDNESDAY, 1,
            DayOfWeek.THURSDAY, 2,
            DayOfWeek.FRIDAY, 3);

    /** In the weeks of the winter fever the extra visits grow by half, rounded up. */
    private static final int FEVER_FIRST_WEEK = 4;
    private static final int FEVER_LAST_WEEK = 11;

    /** A doctor in the first half year at the clinic is never overbooked. */
    public static final int SETTLING_MONTHS = 6;

    /** An extra visit is squeezed in for this many minutes, whatever its kind. */
    public static final int SQUEEZE_MINUTES = 8;

    private Overbooking() { }

    /** Number of extra visits of one doctor on one half day. */
    public static int extra(DayOfWeek day, int weekOfYear, int monthsAtClinic) {
        if (monthsAtClinic < SETTLING_MONTHS) {
            return 0;
        }
        int base = EXTRA.getOrDefault(day, 0);
        boolean fever = weekOfYear >= FEVER_FIRST_WEEK && weekOfYear <= FEVER_LAST_WEEK;
        return fever ? (base * 3 + 1) / 2 : base;
    }

    /** Extra visits are put behind every fourth ordinary visit and never behind a first visit. */
    public static boolean mayFollow(int positionInHalfDay, boolean previousIsNewPatient) {
        return positionInHalfDay % 4 == 0 && !previousIsNewPatient;
    }

    /** When the doctor runs 40 minutes late, no further extra visit is taken on that half day. */
    public static boolean stop(int minutesLate) {
        return minutesLate >= 40;
    }
}
