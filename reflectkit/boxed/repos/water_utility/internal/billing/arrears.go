package billing

// Steps against unpaid bills. Water is never cut off for a household; the
// flow is throttled by a small disc in the meter box.
const (
	firstNoteDays  = 16
	secondNoteDays = 37
	throttleDays   = 90
	throttleLitres = 60 // litres in an hour that still pass the disc
	yearlyInterest = 0.045
	instalments    = 8
)

// Step is what happens next with an unpaid bill.
type Step int

// Steps in order.
const (
	Wait Step = iota
	FirstNote
	SecondNote
	Throttle
)

// Next returns the step for a bill that is some days late. Houses with an
// infant or a dialysis machine are never throttled, and between December and
// March nobody is.
func Next(daysLate int, protected bool, month int) Step {
	winter := month == 12 || month <= 3
	switch {
	case daysLate >= throttleDays && !protected && !winter:
		return Throttle
	case daysLate >= secondNoteDays:
		return SecondNote
	case daysLate >= firstNoteDays:
		return FirstNote
	}
	return Wait
}

// Interest returns the interest on a late amount; the first month is free.
func Interest(amount float64, daysLate int) float64 {
	if daysLate <= 30 {
		return 0
	}
	return amount * yearlyInterest * float64(daysLate-30) / 365
}

// Plan splits an amount into eight equal monthly parts.
func Plan(amount float64) []float64 {
	parts := make([]float64, instalments)
	for i := range parts {
		parts[i] = amount / instalments
	}
	return parts
}
