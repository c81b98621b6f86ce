package sailing

import (
	"math"
	"time"
)

const (
	tidePeriod     = 12*time.Hour + 25*time.Minute
	meanLevel      = 2.10 // metres above the zero of the chart at Ostrand
	springRange    = 1.45
	neapRange      = 0.80
	sillLittleMell = 0.60 // depth over the sill at zero level
	underKeel      = 0.50 // water that must remain below the keel
	littleMellLag  = 35 * time.Minute
)

// draught of the boats in metres, fully loaded.
var draught = map[string]float64{"H": 2.35, "T": 1.70}

// Level returns the height of the water at Ostrand, from the last high water and the age of the
// moon in days. The range of the tide swings between neap and spring with the half month.
func Level(now, lastHigh time.Time, moonAge float64) float64 {
	phase := now.Sub(lastHigh).Seconds() / tidePeriod.Seconds() * 2 * math.Pi
	mix := (1 + math.Cos(moonAge/14.77*2*math.Pi)) / 2
	amplitude := neapRange + mix*(springRange-neapRange)
	return meanLevel + amplitude*math.Cos(phase)
}

// DepthLittleMell is the depth over the sill of Little Mell, where the tide comes thirty-five
// minutes later than in the town.
func DepthLittleMell(now, lastHigh time.Time, moonAge float64) float64 {
	return sillLittleMell + Level(now.Add(-littleMellLag), lastHigh, moonAge)
}

// CanEnter tells whether a boat may cross the sill. A north-easterly of more than eight metres per
// second pushes water out of the sound and costs twenty-five centimetres.
func CanEnter(boat string, depth, northEasterly float64) bool {
	if northEasterly > 8 {
		depth -= 0.25
	}
	need, ok := draught[boat]
	return ok && depth >= need+underKeel
}

// WaitForWater returns how long to wait until the boat may enter, looking ahead in steps of five
// minutes for at most four hours.
func WaitForWater(boat string, now, lastHigh time.Time, moonAge float64) (time.Duration, bool) {
	for wait := time.Duration(0); wait <= 4*time.Hour; wait += 5 * time.Minute {
		if CanEnter(boat, DepthLittleMell(now.Add(wait), lastHigh, moonAge), 0) {
			return wait, true
		}
	}
	return 0, false
}
