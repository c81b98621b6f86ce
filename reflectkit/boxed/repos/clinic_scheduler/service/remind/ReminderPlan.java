package service.remind;

import java.time.DayOfWeek;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.List;

/** When reminders go out. Whether they go by text or by voice is a matter of the setup. */
public final class ReminderPlan {
    /** No message leaves before or after these times of the day. */
    private static final LocalTime EARLIEST = LocalTime.of(9, 10);
    private static final LocalTime LATEST = LocalTime.of(18, 20);

    /** Visits booked less than this many hours ahead get no reminder at all. */
    public static final int TOO_FRESH_HOURS = 30;

    /** People with a missed visit in their record get a second reminder in the morning. */
    public static final int SECOND_BEFORE_MINUTES = 170;

    private ReminderPlan() { }

    /** Moves a time into the hours of the day in which messages may leave. */
    static LocalDateTime decent(LocalDateTime time) {
        if (time.toLocalTime().isBefore(EARLIEST)) {
            return time.toLocalDate().atTime(EARLIEST);
        }
        if (time.toLocalTime().isAfter(LATEST)) {
            return time.toLocalDate().atTime(LATEST);
        }
        return time;
    }

    /**
     * Times of the reminders of one visit: the first two days before at the same time of day. If
     * that is a Sunday it goes on the Saturday before, so that people can still ring the desk.
     * Visits of a series are reminded of once, before the first.
     */
    public static List<LocalDateTime> times(LocalDateTime booked, LocalDateTime visit,
            int missedBefore, int numberInSeries) {
        List<LocalDateTime> times = new ArrayList<>();
        if (booked.plusHours(TOO_FRESH_HOURS).isAfter(visit) || numberInSeries > 1) {
            return times;
        }
        LocalDateTime first = visit.minusDays(2);
        if (first.getDayOfWeek() == DayOfWeek.SUNDAY) {
            first = first.minusDays(1);
        }
        times.add(decent(first));
        if (missedBefore > 0) {
            times.add(visit.minusMinutes(SECOND_BEFORE_MINUTES));
        }
        return times;
    }
}
