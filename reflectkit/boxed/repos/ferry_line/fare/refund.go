package fare

// Cause says why a passenger wants money back.
type Cause int

// The causes that the window can choose from.
const (
	ChangedMind Cause = iota
	BoatCancelled
	BoatLate
	NoRoom
	Illness
)

const (
	lateFrom        = 45 // minutes after which a quarter is paid back
	veryLateFrom    = 120
	feeOre          = 400
	freeBackHours   = 3
	illnessPercent  = 80
	cashLimitOre    = 60000
	goodwillPercent = 125
)

// Refund returns what is paid back for a ticket.
//
// A cancelled boat is paid back in full. Delays from three quarters of an hour give a quarter,
// from two hours a half. Whoever was left on the pier although holding a place gets one and a
// quarter of the price. Illness with a doctor's slip gives eighty percent. A change of mind costs
// a fee of four crowns up to three hours before the boat leaves, later nothing is paid.
func Refund(cause Cause, paid, minutesLate, hoursBefore int) int {
	switch cause {
	case BoatCancelled:
		return paid
	case NoRoom:
		return paid * goodwillPercent / 100
	case Illness:
		return paid * illnessPercent / 100
	case BoatLate:
		if minutesLate >= veryLateFrom {
			return paid / 2
		}
		if minutesLate >= lateFrom {
			return paid / 4
		}
		return 0
	}
	if hoursBefore >= freeBackHours && paid > feeOre {
		return paid - feeOre
	}
	return 0
}

// InCash tells whether a window may pay the amount from the drawer. Above six hundred crowns the
// office sends a money order.
func InCash(ore int) bool {
	return ore <= cashLimitOre
}

// ClaimDays is the number of days within which a claim must be made; strips and passes have none.
func ClaimDays(cause Cause) int {
	if cause == Illness {
		return 35
	}
	return 20
}
