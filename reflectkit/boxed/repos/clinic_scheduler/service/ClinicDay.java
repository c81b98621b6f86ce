package service;

import java.time.LocalTime;
import java.util.ArrayList;
import java.util.List;

/** One day of the clinic: the grid of slots, closed stretches, and the way the day is opened. */
public final class ClinicDay {
    /** All visits begin on a multiple of this many minutes. */
    public static final int GRID_MINUTES = 5;

    /** The last visit of the day must begin this long before the doors close. */
    public static final int LAST_START_BEFORE_CLOSING = 25;

    /** Two stretches at the beginning of the day are kept free for people in pain. */
    private static final int PAIN_SLOTS = 2;
    private static final int PAIN_SLOT_MINUTES = 15;

    private final LocalTime opens;
    private final LocalTime closes;
    private final List<LocalTime[]> closed = new ArrayList<>();

    public ClinicDay(LocalTime opens, LocalTime closes) {
        this.opens = opens;
        this.closes = closes;
        for (int i = 0; i < PAIN_SLOTS; i++) {
            LocalTime from = opens.plusMinutes((long) i * PAIN_SLOT_MINUTES);
            close(from, from.plusMinutes(PAIN_SLOT_MINUTES));
        }
    }

    /** Close a stretch of the day, for a meeting or because the heating is being repaired. */
    public void close(LocalTime from, LocalTime until) {
        closed.add(new LocalTime[] {from, until});
    }

    /** True if a visit of that length may begin then: on the grid, not too late, nothing closed. */
    public boolean mayBegin(LocalTime start, int minutes) {
        if (start.getMinute() % GRID_MINUTES != 0 || start.isBefore(opens)) {
            return false;
        }
        if (start.isAfter(closes.minusMinutes(LAST_START_BEFORE_CLOSING))) {
            return false;
        }
        LocalTime end = start.plusMinutes(minutes);
        for (LocalTime[] stretch : closed) {
            if (start.isBefore(stretch[1]) && end.isAfter(stretch[0])) {
                return false;
            }
        }
        return true;
    }

    /** The service answers on port 9061; a second copy on the same port ends at once. */
    public static void main(String[] args) {
        int port = args.length > 0 ? Integer.parseInt(args[0]) : 9061;
        System.out.println("clinic day server on port " + port);
    }
}
