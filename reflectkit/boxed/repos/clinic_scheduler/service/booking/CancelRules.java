package service.booking;

import java.time.Duration;
import java.time.LocalDateTime;

/** What happens when a visit is cancelled or missed: fees, marks and who may book again. */
public final class CancelRules {
    /** Cancelling is free up to this many hours before the visit. */
    public static final int FREE_HOURS = 26;

    /** Fees in crowns. The fee of the clinic is never charged to anybody under eighteen. */
    public static final int LATE_FEE = 15;
    public static final int MISSED_FEE = 28;
    public static final int LONG_VISIT_FACTOR = 2;
    public static final int LONG_VISIT_MINUTES = 40;

    /** So many missed visits within a year and the patient may book on the same day only. */
    public static final int MISSED_LIMIT = 3;
    public static final int MISSED_MEMORY_DAYS = 365;

    private CancelRules() { }

    /** True if the cancellation comes in time. */
    public static boolean inTime(LocalDateTime visit, LocalDateTime now) {
        return Duration.between(now, visit).toHours() >= FREE_HOURS;
    }

    /**
     * Fee of a cancellation or, with missed, of not coming at all. Visits of forty minutes and
     * more cost twice as much. A late cancellation whose slot was given to somebody from the
     * waiting list costs nothing.
     */
    public static int fee(boolean missed, int minutes, int age, boolean slotRefilled) {
        if (age < 18 || (!missed && slotRefilled)) {
            return 0;
        }
        int fee = missed ? MISSED_FEE : LATE_FEE;
        return minutes >= LONG_VISIT_MINUTES ? fee * LONG_VISIT_FACTOR : fee;
    }

    /** The first missed visit of a patient is forgiven with a friendly card. */
    public static boolean forgiven(int missedBefore) {
        return missedBefore == 0;
    }

    /** Patients at the limit must ring on the morning of the day, from half past seven. */
    public static boolean sameDayOnly(int missedInMemory) {
        return missedInMemory >= MISSED_LIMIT;
    }
}
