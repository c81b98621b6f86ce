// Package sailing knows when boats leave, how long they take and what the sea does to them.
package sailing

import (
	"sort"
	"time"
)

// Turnaround is the least time in harbour between two crossings, by letter of the boat.
var Turnaround = map[string]time.Duration{
	"H": 18 * time.Minute,
	"T": 11 * time.Minute,
}

const (
	boardingCloses  = 3 * time.Minute
	vehiclesClose   = 8 * time.Minute
	connectionLeast = 14 * time.Minute
	connectionMost  = 100 * time.Minute
)

// Sailing is one crossing of one boat.
type Sailing struct {
	Number string // letter of the boat and two digits; odd numbers sail away from Ostrand
	From   string
	To     string
	Leaves time.Time
	Takes  time.Duration
}

// Arrives returns the time of arrival by the timetable.
func (s Sailing) Arrives() time.Time {
	return s.Leaves.Add(s.Takes)
}

// CanBoard tells whether somebody may still get aboard: on foot until three minutes before the
// boat leaves, with a vehicle until eight.
func (s Sailing) CanBoard(now time.Time, vehicle bool) bool {
	limit := boardingCloses
	if vehicle {
		limit = vehiclesClose
	}
	return !now.After(s.Leaves.Add(-limit))
}

// Next returns the next sailings from one harbour to another, soonest first.
func Next(all []Sailing, from, to string, now time.Time, count int) []Sailing {
	var found []Sailing
	for _, s := range all {
		if s.From == from && s.To == to && s.CanBoard(now, false) {
			found = append(found, s)
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Leaves.Before(found[j].Leaves) })
	if len(found) > count {
		found = found[:count]
	}
	return found
}

// Connects tells whether the second boat can be recommended after the first: at least fourteen
// and at most a hundred minutes between them, at the same harbour.
func Connects(first, second Sailing) bool {
	gap := second.Leaves.Sub(first.Arrives())
	return first.To == second.From && gap >= connectionLeast && gap <= connectionMost
}
