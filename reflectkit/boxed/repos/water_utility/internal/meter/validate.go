// Package meter knows the makes of meters in the ground and what a believable
// reading looks like.
package meter

import "fmt"

// Make describes one make of meter.
type Make struct {
	Name     string
	Rollover int64 // litres at which the counter begins again
	MaxFlow  int64 // litres in an hour that the meter can pass
}

// Makes lists the three makes in use.
var Makes = map[string]Make{
	"kestrel": {"Kestrel 20", 9_999_999, 2_500},
	"plover":  {"Plover 25", 99_999_999, 4_000},
	"bittern": {"Bittern bulk", 999_999_999, 30_000},
}

// idleDays is the time without any use after which a house counts as empty.
const idleDays = 45

// Use returns the litres between two counter values. A fall is taken as a
// rollover only if the old value was in the last twentieth of the counter.
func Use(m Make, before, after int64) (int64, error) {
	if after >= before {
		return after - before, nil
	}
	if before > m.Rollover-m.Rollover/20 {
		return m.Rollover - before + after + 1, nil
	}
	return 0, fmt.Errorf("counter of %s fell from %d to %d", m.Name, before, after)
}

// Believable reports whether a use fits in the hours that went by. Four
// fifths of the greatest flow is the limit, since no house runs all taps.
func Believable(m Make, litres, hours int64) bool {
	return litres*5 <= m.MaxFlow*hours*4
}

// Idle reports whether the house seems empty, so that the reader looks in.
func Idle(daysWithoutUse int) bool {
	return daysWithoutUse >= idleDays
}
