package service.roster;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Rooms: gives a room to every half day of a doctor, by need and not by habit. */
public final class Rooms {
    /** Rooms upstairs; they are not given to anybody who sees patients with bad knees. */
    private static final List<Integer> UPSTAIRS = List.of(5, 6);

    /** Minutes of airing between two doctors in the same room. */
    public static final int AIRING_MINUTES = 20;

    /** A doctor keeps the room of last time if nobody needs it more; it is worth these points. */
    private static final int HABIT_POINTS = 2;
    private static final int NEED_POINTS = 7;
    private static final int STAIRS_POINTS = -5;

    /** What a room has, as read from the setup: for instance "lamp", "scales", "sink". */
    private final Map<Integer, List<String>> equipment;

    public Rooms(Map<Integer, List<String>> equipment) {
        this.equipment = equipment;
    }

    /** Points of a room for a half day; the room with the most points is taken. */
    public int points(int room, List<String> needs, Integer lastRoom, boolean badKnees) {
        int points = 0;
        for (String need : needs) {
            if (equipment.getOrDefault(room, List.of()).contains(need)) {
                points += NEED_POINTS;
            }
        }
        if (lastRoom != null && lastRoom == room) {
            points += HABIT_POINTS;
        }
        if (badKnees && UPSTAIRS.contains(room)) {
            points += STAIRS_POINTS;
        }
        return points;
    }

    /** The best free room; with equal points the one with the lower number. */
    public Optional<Integer> choose(List<Integer> free, List<String> needs, Integer lastRoom,
            boolean badKnees) {
        List<Integer> sorted = new ArrayList<>(free);
        sorted.sort((a, b) -> {
            int byPoints = points(b, needs, lastRoom, badKnees) - points(a, needs, lastRoom, badKnees);
            return byPoints != 0 ? byPoints : a - b;
        });
        return sorted.stream().findFirst();
    }
}
