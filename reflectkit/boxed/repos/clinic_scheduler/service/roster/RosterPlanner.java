package service.roster;

import java.time.Duration;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.temporal.ChronoUnit;
import java.util.List;

/** Roster: which of the two weeks is due, and whether a plan of shifts keeps to the rules. */
public final class RosterPlanner {
    /** Week A began on this Monday; A and B have taken turns ever since. */
    private static final LocalDate FIRST_WEEK_A = LocalDate.of(2018, 9, 3);

    public static final int MIN_REST_HOURS = 11;
    public static final int MAX_WEEK_HOURS = 43;
    public static final int MIN_NURSES = 1;
    public static final int LATE_SHIFTS_PER_WEEK = 2;
    public static final int SWAP_NOTICE_DAYS = 9;

    /** One shift of one person. */
    public record Shift(String person, LocalDateTime from, LocalDateTime until, boolean nurse) {
        double hours() {
            return Duration.between(from, until).toMinutes() / 60.0;
        }
    }

    /** Letter of the week that a day belongs to. */
    public char week(LocalDate day) {
        long weeks = ChronoUnit.WEEKS.between(FIRST_WEEK_A, day);
        return weeks % 2 == 0 ? 'A' : 'B';
    }

    /** True if eleven hours lie between the end of a shift and the next one of that person. */
    public boolean restKept(List<Shift> ofOnePerson) {
        for (int i = 1; i < ofOnePerson.size(); i++) {
            LocalDateTime end = ofOnePerson.get(i - 1).until();
            if (Duration.between(end, ofOnePerson.get(i).from()).toHours() < MIN_REST_HOURS) {
                return false;
            }
        }
        return true;
    }

    /** Nobody works more than 43 hours, nor more than two shifts that end after six o'clock. */
    public boolean weekAllowed(List<Shift> ofOnePerson) {
        double hours = ofOnePerson.stream().mapToDouble(Shift::hours).sum();
        long late = ofOnePerson.stream().filter(s -> s.until().getHour() >= 18).count();
        return hours <= MAX_WEEK_HOURS && late <= LATE_SHIFTS_PER_WEEK;
    }

    /** Swapping needs nine days of notice, since patients have been told a doctor's name. */
    public boolean swapAllowed(LocalDate today, LocalDate shift, boolean bothAgree) {
        return bothAgree && ChronoUnit.DAYS.between(today, shift) >= SWAP_NOTICE_DAYS;
    }
}
