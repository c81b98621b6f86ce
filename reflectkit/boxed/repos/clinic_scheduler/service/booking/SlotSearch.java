package service.booking;

import java.time.DayOfWeek;
import java.time.LocalDate;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** Search for free slots: collects what is possible and offers the three most sensible ones. */
public final class SlotSearch {
    public static final int OFFERS = 3;
    public static final int DAYS_AHEAD = 60;

    /** Penalties in points; the offers with the fewest points win. */
    private static final int PER_DAY_OF_WAITING = 4;
    private static final int OTHER_DOCTOR = 30;
    private static final int LEAVES_HOLE = 9;
    private static final int SCHOOL_RUN = 14;

    /** A hole in the plan is a gap that is too short for the shortest visit. */
    private static final int HOLE_BELOW_MINUTES = 10;

    /** A place in the plan that is free. */
    public record Slot(LocalDate day, LocalTime time, String doctor, int gapAfter) { }

    /** Points of a slot for somebody who prefers a doctor and perhaps brings children. */
    public int points(Slot slot, LocalDate today, String wanted, boolean withChildren) {
        int points = (int) (slot.day().toEpochDay() - today.toEpochDay()) * PER_DAY_OF_WAITING;
        if (!slot.doctor().equals(wanted)) {
            points += OTHER_DOCTOR;
        }
        if (slot.gapAfter() > 0 && slot.gapAfter() < HOLE_BELOW_MINUTES) {
            points += LEAVES_HOLE;
        }
        boolean run = slot.time().isAfter(LocalTime.of(14, 50))
                && slot.time().isBefore(LocalTime.of(15, 40));
        if (withChildren && run) {
            points += SCHOOL_RUN;
        }
        return points;
    }

    /** The three best offers, no two of them on the same half day. */
    public List<Slot> offers(List<Slot> free, LocalDate today, String wanted, boolean children) {
        List<Slot> sorted = new ArrayList<>(free);
        sorted.removeIf(s -> s.day().isAfter(today.plusDays(DAYS_AHEAD)));
        sorted.removeIf(s -> s.day().getDayOfWeek() == DayOfWeek.SATURDAY);
        sorted.sort(Comparator.comparingInt(s -> points(s, today, wanted, children)));
        List<Slot> chosen = new ArrayList<>();
        for (Slot slot : sorted) {
            boolean taken = chosen.stream().anyMatch(c -> c.day().equals(slot.day())
                    && (c.time().getHour() < 12) == (slot.time().getHour() < 12));
            if (!taken && chosen.size() < OFFERS) {
                chosen.add(slot);
            }
        }
        return chosen;
    }
}
