// Package billing turns use and prices into a bill.
package billing

import "math"

// Charges that do not depend on the use.
const (
	sewerShare    = 0.62 // part of the water price charged for the sewer
	sewerUseShare = 0.9  // of the water used is taken to reach the sewer
	paperBillFee  = 1.2
	roundTo       = 0.05
	smallestBill  = 4.0
)

// Input is what is needed for the bill of a quarter.
type Input struct {
	WaterCost float64
	Standing  float64
	Sewer     bool
	Paper     bool
	Credit    float64
}

// Total returns the amount to pay, rounded to five hundredths.
//
// The credit of the last quarter is taken off before rounding. A bill below
// the smallest amount is not sent; it is carried over to the next quarter.
func Total(in Input) (amount float64, carried bool) {
	sum := in.WaterCost + in.Standing
	if in.Sewer {
		sum += in.WaterCost * sewerShare * sewerUseShare
	}
	if in.Paper {
		sum += paperBillFee
	}
	sum -= in.Credit
	sum = math.Round(sum/roundTo) * roundTo
	if sum < smallestBill {
		return sum, true
	}
	return sum, false
}

// ProRata returns the standing charge of a person who moved in or out; the
// day of moving belongs to the one who leaves.
func ProRata(standing float64, days, quarterDays int) float64 {
	if quarterDays == 0 {
		return 0
	}
	return standing * float64(days) / float64(quarterDays)
}
