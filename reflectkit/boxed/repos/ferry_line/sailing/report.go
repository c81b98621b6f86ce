package sailing

import "fmt"

// Logbook is what the crew writes down about one crossing.
type Logbook struct {
	Number      string
	MinutesLate int
	Cancelled   bool
	Cause       string // one letter, see causes
	Litres      float64
	Miles       float64
}

// causes are the letters in the column at the edge of the logbook.
var causes = map[string]string{
	"W": "wind or sea",
	"F": "fog",
	"M": "machine",
	"R": "ramp",
	"P": "passengers, mostly dogs",
	"O": "other traffic in the lock",
}

const (
	punctualUpTo   = 5    // minutes
	goalPunctual   = 92.5 // percent, as promised to the county
	litresPerMile  = 11.8 // more than this on average means that the hull wants cleaning
	finePerMissing = 4000 // crowns that the county keeps for each percent below the goal
)

// Punctual returns the percentage of crossings that arrived at most five minutes late. Crossings
// cancelled because of wind or fog are left out, all other cancelled ones count as late.
func Punctual(logs []Logbook) float64 {
	base, good := 0, 0
	for _, l := range logs {
		if l.Cancelled && (l.Cause == "W" || l.Cause == "F") {
			continue
		}
		base++
		if !l.Cancelled && l.MinutesLate <= punctualUpTo {
			good++
		}
	}
	if base == 0 {
		return 100
	}
	return 100 * float64(good) / float64(base)
}

// Fine returns what the county keeps back for a quarter.
func Fine(punctual float64) int {
	if punctual >= goalPunctual {
		return 0
	}
	return int(goalPunctual-punctual) * finePerMissing
}

// HullLine is the remark about the hull at the end of the captain's report.
func HullLine(logs []Logbook) string {
	litres, miles := 0.0, 0.0
	for _, l := range logs {
		litres += l.Litres
		miles += l.Miles
	}
	if miles > 0 && litres/miles > litresPerMile {
		return fmt.Sprintf("hull wants cleaning: %.1f l per mile, mostly %s", litres/miles, causes["M"])
	}
	return "hull is clean"
}
