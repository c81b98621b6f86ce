// Package leak finds leaks from the flow into a zone.
package leak

import "sort"

// Rules for the night flow. The flow between two and four in the morning is
// compared with what the houses and the known small leaks explain.
const (
	houseNightUse  = 1.7 // litres in an hour for each house
	pipeAllowance  = 22  // litres in an hour for each kilometre of pipe
	levelOneFactor = 1.4
	levelTwoFactor = 2.0
	levelTri       = 3.2
)

// Zone is what the rule needs to know about a zone.
type Zone struct {
	Name   string
	Houses int
	PipeKm float64
}

// Expected returns the night flow in litres in an hour that is no worry.
func Expected(z Zone) float64 {
	return houseNightUse*float64(z.Houses) + pipeAllowance*z.PipeKm
}

// Median returns the middle of the values; the rule uses it in place of the
// mean so that one flushed toilet tank does no harm.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := append([]float64(nil), values...)
	sort.Float64s(sorted)
	return sorted[len(sorted)/2]
}

// Level returns the alarm level, zero for none and three for the worst. The
// values are those of three nights; fewer than 18 values give no alarm.
func Level(z Zone, values []float64) int {
	if len(values) < 18 {
		return 0
	}
	ratio := Median(values) / Expected(z)
	switch {
	case ratio >= levelTri:
		return 3
	case ratio >= levelTwoFactor:
		return 2
	case ratio >= levelOneFactor:
		return 1
	}
	return 0
}
