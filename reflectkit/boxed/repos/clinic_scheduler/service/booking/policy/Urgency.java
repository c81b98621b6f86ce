package service.booking.policy;

import java.util.Set;

/** Urgency: sorts callers into four classes by what they say on the telephone. */
public final class Urgency {
    public enum Level { RED, AMBER, BLUE, WHITE }

    /** Words that send the caller to the ambulance at once; the desk does not book anything. */
    private static final Set<String> RED_WORDS =
            Set.of("chest pain", "cannot speak", "not breathing", "unconscious");

    /** Words that need a visit on the same day. */
    private static final Set<String> AMBER_WORDS =
            Set.of("fever", "bite", "deep cut", "eye", "stiff neck");

    /** Longest wait by level, in hours; red has none. */
    public static int longestWaitHours(Level level) {
        return switch (level) {
            case RED -> 0;
            case AMBER -> 5;
            case BLUE -> 72;
            case WHITE -> 24 * 21;
        };
    }

    private Urgency() { }

    /**
     * Level of a caller. Fever counts as amber, but in children below two years and in people
     * above eighty every amber word becomes red if it has lasted more than a day. Pain from
     * seven on the scale of ten is amber, from four it is blue.
     */
    public static Level level(Set<String> words, int age, int pain, int hoursSince) {
        if (words.stream().anyMatch(RED_WORDS::contains)) {
            return Level.RED;
        }
        boolean amber = words.stream().anyMatch(AMBER_WORDS::contains);
        boolean frail = age < 2 || age > 80;
        if (amber && frail && hoursSince > 24) {
            return Level.RED;
        }
        if (amber || pain >= 7) {
            return Level.AMBER;
        }
        return pain >= 4 ? Level.BLUE : Level.WHITE;
    }

    /** A caller who rings a third time about the same thing goes up one level. */
    public static Level afterCalls(Level level, int calls) {
        if (calls < 3 || level == Level.RED) {
            return level;
        }
        return Level.values()[level.ordinal() - 1];
    }
}
