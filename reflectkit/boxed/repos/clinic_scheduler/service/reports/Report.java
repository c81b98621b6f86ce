package service.reports;

import java.util.List;
import java.util.Locale;

/** Report to the health board: visits by kind, waiting times and the share of missed visits. */
public final class Report {
    /** The board wants the wait that nine of ten patients did not exceed. */
    private static final double QUANTILE = 0.9;

    /** Groups smaller than this are printed as a star, so that nobody can be recognised. */
    public static final int SMALLEST_GROUP = 6;

    /** Targets agreed with the board. */
    public static final int TARGET_WAIT_MINUTES = 27;
    public static final double TARGET_MISSED = 0.055;

    /** Minutes that nine of ten waited at most; nearest rank, values must be sorted. */
    public static int waitQuantile(List<Integer> sortedMinutes) {
        int rank = (int) Math.ceil(QUANTILE * sortedMinutes.size());
        return sortedMinutes.get(Math.max(0, rank - 1));
    }

    /** A count as it may be printed. */
    public static String shown(int count) {
        return count > 0 && count < SMALLEST_GROUP ? "*" : Integer.toString(count);
    }

    /** Share of missed visits; visits that were moved by the clinic are not in the base. */
    public static double missedShare(int missed, int planned, int movedByClinic) {
        int base = planned - movedByClinic;
        return base <= 0 ? 0 : (double) missed / base;
    }

    /** Verdict line at the foot of the report. */
    public static String verdict(int waitMinutes, double missed) {
        boolean good = waitMinutes <= TARGET_WAIT_MINUTES && missed <= TARGET_MISSED;
        return String.format(Locale.ROOT, "wait %d min, missed %.1f %%: %s", waitMinutes,
                missed * 100, good ? "targets met" : "see letter");
    }

    /** The report is due on the twentieth of the month after the quarter, on pink paper. */
    public static String fileName(int year, int quarter) {
        return "board_" + year + "q" + quarter + ".txt";
    }

    private Report() { }
}
