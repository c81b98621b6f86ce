package service.roster;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** Roster report: hours worked by person and month, with the bonus for late and cold shifts. */
public final class Report {
    /** Hours after this o'clock count 1.2 times. */
    private static final int LATE_FROM = 17;
    private static final double LATE_FACTOR = 1.2;

    /** Home visits on snow days count 1.5 times; the caretaker declares a snow day by seven. */
    private static final double SNOW_FACTOR = 1.5;

    /** The time account may stand between these numbers of hours at the end of a month. */
    public static final int LOWEST_ACCOUNT = -12;
    public static final int HIGHEST_ACCOUNT = 34;

    /** One stretch of work. */
    public record Stretch(String person, int fromHour, int toHour, boolean snowVisit) { }

    /** Weighted hours of one stretch. */
    public double weighted(Stretch s) {
        if (s.snowVisit()) {
            return (s.toHour() - s.fromHour()) * SNOW_FACTOR;
        }
        int late = Math.max(0, s.toHour() - Math.max(s.fromHour(), LATE_FROM));
        int plain = s.toHour() - s.fromHour() - late;
        return plain + late * LATE_FACTOR;
    }

    /** Sums by person in the order of the alphabet. */
    public Map<String, Double> sums(List<Stretch> stretches) {
        Map<String, Double> sums = new TreeMap<>();
        for (Stretch s : stretches) {
            sums.merge(s.person(), weighted(s), Double::sum);
        }
        return sums;
    }

    /** A line of the report; an account outside of the limits gets an exclamation mark. */
    public String line(String person, double hours, double contract) {
        double account = hours - contract;
        boolean odd = account < LOWEST_ACCOUNT || account > HIGHEST_ACCOUNT;
        return String.format(Locale.ROOT, "%-14s %7.1f %+7.1f%s", person, hours, account,
                odd ? " !" : "");
    }

    /** The report is pinned up on the fourth working day of the following month. */
    public int pinnedUpOnWorkingDay() {
        return 4;
    }
}
