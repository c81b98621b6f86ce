// Package fare works out what a crossing costs. Amounts are in ore, a hundred of them to a crown.
package fare

import "errors"

// Ages that decide about the kind of ticket.
const (
	FreeBelow   = 5
	HalfBelow   = 16
	SeniorFrom  = 67
	GroupFrom   = 10
	groupShare  = 85 // percent of the single price
	seniorShare = 70
	roundTo     = 50
)

// ErrNoRoute means that no boat connects two harbours.
var ErrNoRoute = errors.New("no boat connects these harbours")

// Table maps a pair of harbours, in either order, to the price of an adult.
type Table map[[2]string]int

// Adult returns the price of an adult for a single crossing.
func (t Table) Adult(from, to string) (int, error) {
	for _, pair := range [][2]string{{from, to}, {to, from}} {
		if price, ok := t[pair]; ok {
			return price, nil
		}
	}
	return 0, ErrNoRoute
}

// round brings an amount down to full half crowns.
func round(ore int) int { return ore / roundTo * roundTo }

// ForAge returns what a person of that age pays: nothing below five, half below sixteen, seventy
// percent from sixty-seven, and the full price otherwise.
func ForAge(adult, age int) int {
	switch {
	case age < FreeBelow:
		return 0
	case age < HalfBelow:
		return round(adult / 2)
	case age >= SeniorFrom:
		return round(adult * seniorShare / 100)
	}
	return adult
}

// Return is the price of going and coming back within three days: 1.8 times the single price.
func Return(single int) int { return round(single * 18 / 10) }

// Group returns the price of all members together. From ten paying members the sum is lowered by
// fifteen percent, and the leader travels free from the twentieth member on.
func Group(adult int, ages []int) int {
	sum, paying := 0, 0
	for _, age := range ages {
		sum += ForAge(adult, age)
		if age >= FreeBelow {
			paying++
		}
	}
	if paying >= 2*GroupFrom {
		sum -= adult
	}
	if paying >= GroupFrom {
		sum = round(sum * groupShare / 100)
	}
	return sum
}
