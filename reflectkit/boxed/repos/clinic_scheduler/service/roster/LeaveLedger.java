package service.roster;

import java.util.HashMap;
import java.util.Map;

/** Leave: days of holiday by person, what is carried over and who may be away together. */
public final class LeaveLedger {
    public static final int DOCTOR_DAYS = 31;
    public static final int NURSE_DAYS = 29;
    public static final int DESK_DAYS = 27;

    /** One more day for every so many full years at the clinic, up to a cap. */
    public static final int YEARS_PER_EXTRA_DAY = 4;
    public static final int MAX_EXTRA_DAYS = 5;

    /** Days carried into the new year are lost after the last day of that month. */
    public static final int MAX_CARRY = 6;
    public static final int CARRY_LOST_AFTER_MONTH = 4;

    /** At most so many doctors may be away at the same time. */
    public static final int DOCTORS_AWAY = 2;

    private final Map<String, Double> taken = new HashMap<>();

    /** Days of leave in a full year. */
    public static int entitlement(String job, int years) {
        int base = switch (job) {
            case "doctor" -> DOCTOR_DAYS;
            case "nurse", "physio" -> NURSE_DAYS;
            default -> DESK_DAYS;
        };
        return base + Math.min(MAX_EXTRA_DAYS, years / YEARS_PER_EXTRA_DAY);
    }

    /** Wednesdays count as half a day of leave, since the clinic closes at one. */
    public void take(String person, int wholeDays, int wednesdays) {
        taken.merge(person, wholeDays + 0.5 * wednesdays, Double::sum);
    }

    /** What is left, with the days carried over from last year as long as they are valid. */
    public double left(String person, String job, int years, int carried, int month) {
        int valid = month <= CARRY_LOST_AFTER_MONTH ? Math.min(carried, MAX_CARRY) : 0;
        return entitlement(job, years) + valid - taken.getOrDefault(person, 0.0);
    }

    /** In the two weeks around the harvest fair only one doctor may be away. */
    public static boolean mayBeAway(int doctorsAwayAlready, boolean harvestFair) {
        return doctorsAwayAlready < (harvestFair ? 1 : DOCTORS_AWAY);
    }
}
