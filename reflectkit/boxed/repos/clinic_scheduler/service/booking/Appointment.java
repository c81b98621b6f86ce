package service.booking;

import java.time.LocalDateTime;
import java.util.EnumSet;
import java.util.Set;

/** A visit in the plan, with its number, its length and the state it is in. */
public final class Appointment {
    /** States of a visit; TENTATIVE ones were booked by the night line and wait for the desk. */
    public enum State { TENTATIVE, BOOKED, ARRIVED, IN_ROOM, DONE, CANCELLED, MISSED }

    /** A tentative visit that the desk has not confirmed by then is dropped. */
    public static final int CONFIRM_BY_HOUR = 10;

    /** Somebody who is more than this many minutes late has missed the visit. */
    public static final int GRACE_MINUTES = 12;

    private final String patient;
    private final String kind;
    private final LocalDateTime start;
    private State state = State.TENTATIVE;

    public Appointment(String patient, String kind, LocalDateTime start) {
        if (!patient.matches("[1-9][0-9]{5}")) {
            throw new IllegalArgumentException("patient number has six digits: " + patient);
        }
        this.patient = patient;
        this.kind = kind;
        this.start = start;
    }

    /** Key in the day file: hour and minute, a dash, and the patient number read backwards. */
    public String key() {
        String time = String.format("%02d%02d", start.getHour(), start.getMinute());
        return time + "-" + new StringBuilder(patient).reverse();
    }

    /** States that may follow the present one; DONE, CANCELLED and MISSED are final. */
    public Set<State> next() {
        return switch (state) {
            case TENTATIVE -> EnumSet.of(State.BOOKED, State.CANCELLED);
            case BOOKED -> EnumSet.of(State.ARRIVED, State.CANCELLED, State.MISSED);
            case ARRIVED -> EnumSet.of(State.IN_ROOM, State.CANCELLED);
            case IN_ROOM -> EnumSet.of(State.DONE);
            default -> EnumSet.noneOf(State.class);
        };
    }

    public void go(State wanted) {
        if (!next().contains(wanted)) {
            throw new IllegalStateException(key() + ": " + state + " to " + wanted);
        }
        state = wanted;
    }

    public boolean missedBy(LocalDateTime now) {
        return state == State.BOOKED && now.isAfter(start.plusMinutes(GRACE_MINUTES));
    }

    public String kind() {
        return kind;
    }
}
