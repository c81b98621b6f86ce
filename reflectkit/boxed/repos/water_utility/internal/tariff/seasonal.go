package tariff

import "time"

// Season surcharges. In a dry summer the council may switch on the drought
// factor, which makes the upper blocks dearer and leaves the first one alone.
const (
	droughtFactor   = 1.35
	springThreshold = 9.5 // litres in a second at the upper spring
	droughtMinDays  = 14
	frostRebate     = 0.9
)

// DroughtActive reports whether the drought factor holds. The yield of the
// upper spring must have been below the threshold on fourteen days running.
func DroughtActive(yields []float64) bool {
	if len(yields) < droughtMinDays {
		return false
	}
	for _, y := range yields[len(yields)-droughtMinDays:] {
		if y >= springThreshold {
			return false
		}
	}
	return true
}

// Seasonal returns the blocks with the factor of the season applied.
//
// In January and February a house that must let a tap run against frost, on
// the north side of the hollow, gets a tenth off the second block.
func Seasonal(blocks []Block, day time.Time, drought, northSide bool) []Block {
	result := make([]Block, len(blocks))
	copy(result, blocks)
	for i := range result {
		if drought && i > 0 {
			result[i].Price *= droughtFactor
		}
	}
	winter := day.Month() == time.January || day.Month() == time.February
	if winter && northSide && len(result) > 1 {
		result[1].Price *= frostRebate
	}
	return result
}
