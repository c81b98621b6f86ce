// Command alarmd watches the flow of each zone and calls out the duty engineer.
//
// It looks at the newest flow values every 90 seconds. An alarm that nobody
// accepts within 12 minutes is passed on to the second name on the list, and
// after that to the chief engineer.
package main

import (
	"fmt"
	"time"
)

const (
	pollEvery     = 90 * time.Second
	passOnAfter   = 12 * time.Minute
	quietFrom     = 22
	quietUntil    = 6
	quietMinLevel = 2
)

var callOrder = []string{"duty engineer", "second on duty", "chief engineer"}

// alarm is one open alarm of a zone.
type alarm struct {
	zone     string
	level    int
	raised   time.Time
	accepted bool
}

// mayRing reports whether the telephone may ring at the given hour. In the
// quiet hours only alarms of level two and three ring.
func mayRing(level, hour int) bool {
	if hour >= quietFrom || hour < quietUntil {
		return level >= quietMinLevel
	}
	return true
}

// whom returns the person to call for an alarm that is still open.
func whom(a alarm, now time.Time) string {
	step := int(now.Sub(a.raised) / passOnAfter)
	if step >= len(callOrder) {
		step = len(callOrder) - 1
	}
	return callOrder[step]
}

func main() {
	open := []alarm{}
	for now := range time.Tick(pollEvery) {
		for _, a := range open {
			if !a.accepted && mayRing(a.level, now.Hour()) {
				fmt.Printf("%s level %d: calling %s\n", a.zone, a.level, whom(a, now))
			}
		}
	}
}
