package season

import "time"

const (
	fuelStepOre = 150 // price of a litre of fuel above which the fuel surcharge begins
	fuelPerStep = 2   // percent of the fare for every ten ore above it
	fuelCeiling = 14
	nightFrom   = 22
	nightOre    = 1200
)

// percent is what a season adds to the fares of visitors; islanders never pay it.
var percent = map[Name]int{
	Ice:    0,
	Shore:  5,
	Summer: 20,
	Feast:  35,
}

// Seasonal returns the surcharge of the season in ore. On Tuesdays and Wednesdays of the summer
// only half of it is asked, to draw visitors away from the weekend.
func Seasonal(fare int, day time.Time, islander bool) int {
	if islander {
		return 0
	}
	name := Of(day)
	share := percent[name]
	weekday := day.Weekday()
	if name == Summer && (weekday == time.Tuesday || weekday == time.Wednesday) {
		share /= 2
	}
	return fare * share / 100
}

// Fuel returns the fuel surcharge for a price of fuel in ore per litre: two percent of the fare
// for every full ten ore above the step, never more than fourteen percent.
func Fuel(fare, litreOre int) int {
	if litreOre <= fuelStepOre {
		return 0
	}
	share := (litreOre - fuelStepOre) / 10 * fuelPerStep
	if share > fuelCeiling {
		share = fuelCeiling
	}
	return fare * share / 100
}

// Night returns the supplement of boats that leave at ten in the evening or later. It is asked
// once per ticket and not for children in arms.
func Night(leaves time.Time, inArms bool) int {
	if inArms || leaves.Hour() < nightFrom {
		return 0
	}
	return nightOre
}
