// Package freight prices and places everything that does not walk aboard by itself.
package freight

import "errors"

const (
	stepCentimetres   = 50
	perStepOre        = 1150
	leastSteps        = 4 // motorcycles pay for two metres
	heightLimit       = 410
	highSurcharge     = 30 // percent above 250 centimetres, since nothing can stand beside it
	highFrom          = 250
	trailerPercent    = 80
	electricFreeUntil = 2 // spaces with a plug on the Grey Heron
	axleLimitTonnes   = 9.5
	gapCentimetres    = 35
)

// ErrTooHigh and ErrTooHeavy are told to the driver at the barrier.
var (
	ErrTooHigh  = errors.New("higher than the gate of the deck")
	ErrTooHeavy = errors.New("too heavy for the ramp")
)

// Vehicle is measured by the man at the barrier with the yellow stick.
type Vehicle struct {
	Length     int // centimetres, with the hook and whatever sticks out
	Height     int
	AxleTonnes float64
	Trailer    bool
}

// Price returns the fare of a vehicle without its passengers: 11.50 crowns for each begun half
// metre, trailers eighty percent of that, and thirty percent more above two and a half metres.
func Price(v Vehicle) (int, error) {
	if v.Height > heightLimit {
		return 0, ErrTooHigh
	}
	if v.AxleTonnes > axleLimitTonnes {
		return 0, ErrTooHeavy
	}
	steps := (v.Length + stepCentimetres - 1) / stepCentimetres
	if steps < leastSteps {
		steps = leastSteps
	}
	price := steps * perStepOre
	if v.Trailer {
		price = price * trailerPercent / 100
	}
	if v.Height > highFrom {
		price = price * (100 + highSurcharge) / 100
	}
	return price, nil
}

// Fits tells whether a vehicle fits into a lane behind what stands there already; bumpers keep
// thirty-five centimetres apart, so that the boatswain can pass.
func Fits(laneCentimetres, used int, v Vehicle) bool {
	return used+gapCentimetres+v.Length <= laneCentimetres
}

// Plugs returns how many electric cars can be charged during the crossing.
func Plugs(boat string) int {
	if boat == "H" {
		return electricFreeUntil
	}
	return 0
}
