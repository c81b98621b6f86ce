package leak

// A leak behind the meter is the matter of the owner, but a letter is sent in
// time so that nobody is ruined by a dripping cistern.
const (
	minFlowHours   = 72 // hours without a single hour of zero use
	letterLitres   = 6  // litres in the smallest hour that make a letter
	urgentLitres   = 150
	rebateShare    = 0.4
	rebateYearsGap = 3
)

// Verdict says what to do about a house.
type Verdict string

// The verdicts in rising order.
const (
	Nothing Verdict = "nothing"
	Letter  Verdict = "letter"
	Visit   Verdict = "visit the same day"
)

// Behind looks at hourly use and judges whether water runs all the time.
func Behind(hourly []int) Verdict {
	if len(hourly) < minFlowHours {
		return Nothing
	}
	smallest := hourly[len(hourly)-minFlowHours]
	for _, litres := range hourly[len(hourly)-minFlowHours:] {
		if litres < smallest {
			smallest = litres
		}
	}
	switch {
	case smallest >= urgentLitres:
		return Visit
	case smallest >= letterLitres:
		return Letter
	}
	return Nothing
}

// Rebate returns the money given back for a hidden leak: two fifths of the
// cost above the usual bill, once in three years, and only with the invoice
// of a plumber.
func Rebate(bill, usual float64, yearsSinceLast int, invoice bool) float64 {
	if !invoice || yearsSinceLast < rebateYearsGap || bill <= usual {
		return 0
	}
	return rebateShare * (bill - usual)
}
