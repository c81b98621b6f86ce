package sailing

import "fmt"

// Limits of wind and sea above which a boat stays in harbour; wind in metres per second, waves in
// metres at the outer buoy.
type limits struct {
	wind  float64
	gusts float64
	waves float64
}

var mayGo = map[string]limits{
	"H": {wind: 19, gusts: 26, waves: 2.4},
	"T": {wind: 15, gusts: 21, waves: 1.6},
}

const (
	fogSlowMetres   = 900 // below this sight boats go at half speed
	fogStopMetres   = 150
	holdForBus      = 10 // minutes that a boat waits for the post bus
	holdLastBoat    = 25
	catchUpPercent  = 6 // of the crossing time, by running faster
	announceMinutes = 4
)

// Runs tells whether a boat may leave in that wind and sea.
func Runs(boat string, wind, gusts, waves float64) bool {
	l, ok := mayGo[boat]
	return ok && wind <= l.wind && gusts <= l.gusts && waves <= l.waves
}

// FogMinutes returns the minutes that fog adds to a crossing, and false if no boat may go at all.
func FogMinutes(crossing, sightMetres int) (int, bool) {
	if sightMetres < fogStopMetres {
		return 0, false
	}
	if sightMetres < fogSlowMetres {
		return crossing, true
	}
	return 0, true
}

// Propagate carries a delay on to the next crossing: the boat catches up six percent of the
// crossing time and whatever the stay in harbour has beyond the turnaround.
func Propagate(delay, crossing, slackInHarbour int) int {
	left := delay - crossing*catchUpPercent/100 - slackInHarbour
	if left < 0 {
		return 0
	}
	return left
}

// Hold returns how long a boat may wait for a late bus: ten minutes, the last boat twenty-five.
func Hold(lastBoat bool) int {
	if lastBoat {
		return holdLastBoat
	}
	return holdForBus
}

// BoardText is the line on the board; small delays are not shown.
func BoardText(number string, delay int) string {
	if delay < announceMinutes {
		return number + " on time"
	}
	return fmt.Sprintf("%s about %d min late", number, (delay+4)/5*5)
}
