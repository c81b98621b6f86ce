package fare

import "time"

// Kind is a sort of pass. Passes are personal, except the strip of tickets and the pier card.
type Kind string

// The passes that the windows sell.
const (
	Strip    Kind = "strip"    // twelve crossings on one strip, anybody may use it
	Month    Kind = "month"    // any number of crossings on one route
	Youth    Kind = "youth"    // under nineteen, all routes, school year
	Islander Kind = "islander" // people who live on Mell or Little Mell
	Pier     Kind = "pier"     // walking on the pier to wave goodbye
)

const (
	stripCrossings  = 12
	stripPriceOf    = 9  // a strip costs as much as nine single tickets
	monthPriceOf    = 26 // a month costs as much as twenty-six
	islanderPercent = 40
	youthOre        = 48000
	pierOre         = 200
	lostCardOre     = 3500
)

// PassPrice returns the price of a pass for a route with the given adult price.
func PassPrice(kind Kind, adult int) int {
	switch kind {
	case Strip:
		return adult * stripPriceOf
	case Month:
		return adult * monthPriceOf
	case Islander:
		return adult * monthPriceOf * islanderPercent / 100
	case Youth:
		return youthOre
	}
	return pierOre
}

// Expires tells until when a pass is good. Strips last two years, month passes thirty-one days,
// and youth passes end on the tenth of August whenever they were bought.
func Expires(kind Kind, bought time.Time) time.Time {
	switch kind {
	case Strip:
		return bought.AddDate(2, 0, 0)
	case Month, Islander:
		return bought.AddDate(0, 0, 31)
	case Youth:
		end := time.Date(bought.Year(), time.August, 10, 0, 0, 0, 0, bought.Location())
		if !bought.Before(end) {
			end = end.AddDate(1, 0, 0)
		}
		return end
	}
	return bought.Add(2 * time.Hour)
}

// Replacement is the fee for a lost card; the second loss within a year costs twice as much, and
// strips are not replaced at all.
func Replacement(kind Kind, lossesThisYear int) (int, bool) {
	if kind == Strip || kind == Pier {
		return 0, false
	}
	if lossesThisYear > 1 {
		return 2 * lostCardOre, true
	}
	return lostCardOre, true
}
