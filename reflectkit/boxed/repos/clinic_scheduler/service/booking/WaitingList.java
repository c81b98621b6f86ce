package service.booking;

import java.time.LocalDate;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** Waiting list: people who would come at short notice when somebody else cancels. */
public final class WaitingList {
    /** Entries beyond this number are refused, or people would hope in vain. */
    public static final int CAPACITY = 45;

    /** How long the desk lets the telephone ring before it tries the next on the list. */
    public static final int RING_SECONDS = 35;

    /** Somebody who has refused that many offers moves to the end. */
    public static final int REFUSALS = 2;

    /** After this many days an entry must be renewed. */
    public static final int RENEW_DAYS = 50;

    /** One person on the list, with the time needed to get to the clinic. */
    public static final class Entry {
        final String patient;
        final LocalDate since;
        final int travelMinutes;
        int refused;

        public Entry(String patient, LocalDate since, int travelMinutes) {
            this.patient = patient;
            this.since = since;
            this.travelMinutes = travelMinutes;
        }
    }

    private final List<Entry> entries = new ArrayList<>();

    public boolean add(Entry entry) {
        return entries.size() < CAPACITY && entries.add(entry);
    }

    /** First on the list who can be here ten minutes before the slot begins. */
    public Optional<Entry> candidate(LocalTime now, LocalTime slot) {
        return entries.stream()
                .filter(e -> !now.plusMinutes(e.travelMinutes + 10L).isAfter(slot))
                .findFirst();
    }

    /** Note a refusal; the second one sends the entry to the end and sets the count back. */
    public void refuse(Entry entry) {
        entry.refused++;
        if (entry.refused >= REFUSALS) {
            entry.refused = 0;
            entries.remove(entry);
            entries.add(entry);
        }
    }

    /** Entries that have run out are taken off on the first working day of the week. */
    public void prune(LocalDate today) {
        entries.removeIf(e -> e.since.plusDays(RENEW_DAYS).isBefore(today));
    }
}
